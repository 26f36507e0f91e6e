"""The leased device as torch knows it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hetero_airflow.runtime.task_lease import current_lease
from hetero_airflow.settings import LEASE_VARIABLE

if TYPE_CHECKING:
    import torch


def torch_device() -> torch.device:
    """The device to train on: the leased one; without a lease the first GPU there is, else the CPU.

    Of several, each process that torchrun started has its own. A share's part of the memory is set as torch's limit
    for this process. Needs torch.
    """
    import torch

    if LEASE_VARIABLE not in os.environ:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    lease = current_lease()
    device = torch.device(lease.torch_device)
    if device.type != "cpu":
        device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))
    if lease.share is not None and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(lease.share, device)
    return device
