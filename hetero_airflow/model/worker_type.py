"""What kind of machine a worker is: what whoever adds machines orders by."""

from __future__ import annotations

import re
from collections import Counter

from hetero_airflow.model.device import device_class
from hetero_airflow.model.worker import Worker

TYPE_LABEL = "hetero/type"
"""Label of a worker: what its kind of machine is called where it is ordered, such as ``p4d.24xlarge``."""


def worker_type(worker: Worker) -> str:
    """The type by the worker's label; without one, by its accelerators, or its cores where it has none.

    Letters, digits, ``.``, ``_`` and ``-`` only, so that it fits into a metric's name and a URL.

    >>> from hetero_airflow.testing import a_cpu, a_worker
    >>> worker_type(a_worker()), worker_type(a_worker(labels={"hetero/type": "p4d.24xlarge"}))
    ('2x-nvidia-a100-sxm4-40gb', 'p4d.24xlarge')
    >>> worker_type(a_worker(devices=(a_cpu(32),)))
    'cpu-32'
    """
    label = worker.labels.get(TYPE_LABEL)
    if label:
        return _clean(label)
    classes = Counter(device_class(device) for device in worker.devices if device.kind != "cpu")
    if classes:
        return _clean("_".join(f"{number}x-{name}" for name, number in sorted(classes.items())))
    return f"cpu-{0 if worker.cpu is None else len(worker.cpu.cores)}"


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:100]
