"""What HeteroExecutor adds to the memory of the scheduler's process, against plain LocalExecutor.

``make bench-memory``. Resident memory (RSS) of the scheduler's main process after the DAG of the
overhead benchmark has run once; under LocalExecutor its device tasks run as plain ones.
"""

import psutil
from queueing_delays import OURS, booted


def main():
    figures = {}
    for executor in ("LocalExecutor", f"LocalExecutor,{OURS}"):
        with booted(executor) as airflow:
            run_id = airflow.trigger("overhead")
            print(f"{executor}: {airflow.wait_for_run('overhead', run_id, 600)}", flush=True)
            figures[executor] = psutil.Process(airflow.pid("scheduler")).memory_info().rss / 2**20
    for executor, mebibytes in figures.items():
        print(f"{mebibytes:8.1f} MiB  {executor}")
    plain, ours = figures.values()
    print(f"{ours - plain:8.1f} MiB  added, {ours / plain:.2f} ×")


if __name__ == "__main__":
    main()
