"""What the task of ``airflow hetero doctor`` does: it looks at its lease, and computes on the device with torch."""

import importlib.util
import os
import platform
import socket

from hetero_airflow.contract.task_lease import current_lease, torch_device
from hetero_airflow.errors import NoLeaseError


def look() -> dict[str, str | None]:
    """What the task sees: host, Python, lease, kind of devices, the variables that bind them, and torch."""
    try:
        lease = current_lease()
    except NoLeaseError:
        lease = None
    names = [name for name in sorted(os.environ) if "VISIBLE_" in name and os.environ[name]]
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "lease": None if lease is None else str(lease),
        "kind": None if lease is None else lease.kind,
        "variables": ", ".join(f"{name}={os.environ[name]}" for name in names) or None,
        "torch": None if lease is None or lease.kind == "cpu" else _computed(),
    }


def _computed() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed there"
    import torch

    device = torch_device()
    torch.ones(8, device=device).sum().item()
    return f"torch {torch.__version__} computes on {device}"
