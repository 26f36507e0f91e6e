"""The features of the device that this process has leased, as its driver reports them here."""

from typing import TYPE_CHECKING

from hetero_airflow.contract.task_lease import current_lease, torch_device
from hetero_airflow.discovery.cpu import read_flags
from hetero_airflow.model.devices.features import DeviceFeatures, accelerator_features, cpu_features

if TYPE_CHECKING:
    import torch


def leased_features() -> DeviceFeatures:
    """The features of `torch_device`. Needs torch.

    :raises NoLeaseError: the lease in the environment can't be read
    """
    device = torch_device()
    if device.type == "cpu":
        return cpu_features(read_flags())
    if device.type == "cuda":
        return _gpu_features(device)
    lease = current_lease()  # torch_device takes such a device only from a lease
    return accelerator_features(lease.vendor, lease.model)


def _gpu_features(device: "torch.device") -> DeviceFeatures:
    import torch

    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return accelerator_features("amd", properties.gcnArchName.partition(":")[0])
    model = properties.name.lower().replace(" ", "-")
    return accelerator_features("nvidia", f"{properties.major}.{properties.minor}", model)
