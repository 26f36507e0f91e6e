"""Reads data ahead, for the tasks after this one: ``python -m hetero_airflow.runtime.data.prefetch``.

It is a process of its own, at the lowest priority for processor and disk, so that the running task does not wait for
it. Standard input has the URLs, as a line of JSON. The task holds it open: this process ends with it.
"""

import json
import os
import sys
import threading
from contextlib import suppress

import psutil

from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.errors import HeteroError
from hetero_airflow.runtime.data.cache import Cache
from hetero_airflow.settings import DATA_VARIABLE
from hetero_airflow.units import format_bytes


def main() -> None:
    """Read the objects into the cache, and say in one line how much that was."""
    urls = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.nice(19)
    with suppress(psutil.Error, AttributeError):  # AttributeError: not on Linux
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    try:
        cache = Cache(DataSettings.of(os.environ.get(DATA_VARIABLE)), is_idle=True)
        count, size_bytes = cache.read_ahead(urls)
    except (HeteroError, OSError) as error:
        print(f"The data of the next tasks is not read ahead: {error}", flush=True)
    else:
        if count:
            objects = "1 object" if count == 1 else f"{count:,} objects"
            print(f"Read ahead for the next tasks: {objects}, {format_bytes(size_bytes)}", flush=True)
    os._exit(0)  # nothing waits for what is still on its way


def _end_with_input() -> None:
    """End at once: what is not complete is nowhere yet, and the next process removes it."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
