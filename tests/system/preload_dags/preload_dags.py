"""What the tests and the benchmark of preload run."""

from airflow.sdk import dag, task


@dag(schedule=None)
def preloaded():
    @task.device(device="cpu:1")
    def look(number: int) -> dict:
        import sys
        import time

        was_loaded, began = "torch" in sys.modules, time.process_time()
        import torch

        import_cpu_s = time.process_time() - began
        with open("/proc/self/smaps_rollup") as file:
            pss_kib = sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        return {
            "was_loaded": was_loaded,
            "import_cpu_s": import_cpu_s,
            "pss_mb": pss_kib / 1024,
            "drawn": torch.randint(10**9, (3,)).tolist(),
        }

    @task
    def plain() -> bool:
        import sys

        return "torch" in sys.modules

    look.expand(number=[1, 2])
    plain()


@dag(schedule=None)
def eight():
    @task.device(device="cpu:1")
    def small(number: int) -> float:
        import torch

        return float(torch.ones(number).sum())

    small.expand(number=list(range(1, 9)))


preloaded()
eight()
