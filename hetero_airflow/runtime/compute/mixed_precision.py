"""Mixed precision as the leased device is built for; torch.amp does the work."""

import logging
from dataclasses import dataclass
from typing import Any

import torch

from hetero_airflow.contract.task_lease import torch_device
from hetero_airflow.model.devices.features import DeviceFeatures
from hetero_airflow.runtime.device_features import leased_features

logger = logging.getLogger(__name__)

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_LIGHTNING = {torch.bfloat16: "bf16-mixed", torch.float16: "16-mixed", torch.float32: "32-true"}
_ACCELERATE = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "no"}


class LossScaler(torch.amp.GradScaler):
    """A `torch.amp.GradScaler` that goes on from the state of one on a device that needed no scaling, and back."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; an empty one, or one that is not needed here, changes nothing."""
        if self.is_enabled() and state_dict:
            super().load_state_dict(state_dict)


@dataclass(frozen=True)
class Precision:
    """How to train on a device. The weights stay in FP32.

    ``scaler`` belongs into the state of the checkpoint. On a device that needs no scaled loss it does nothing::

        with precision.autocast():
            loss = model(batch)
        precision.scaler.scale(loss).backward()
        precision.scaler.step(optimizer)
        precision.scaler.update()
    """

    device_type: str
    """As torch names it: ``cuda``, ``cpu``."""
    dtype: torch.dtype
    """``torch.bfloat16``, ``torch.float16`` or ``torch.float32``."""
    scaler: LossScaler

    def autocast(self) -> torch.autocast:
        """The context for the forward pass and the loss; it changes nothing in FP32."""
        if self.dtype is torch.float32:
            return torch.autocast(self.device_type, enabled=False)
        return torch.autocast(self.device_type, dtype=self.dtype)

    @property
    def lightning(self) -> str:
        """The value for ``lightning.Trainer(precision=…)``."""
        return _LIGHTNING[self.dtype]

    @property
    def accelerate(self) -> str:
        """The value for ``accelerate.Accelerator(mixed_precision=…)``."""
        return _ACCELERATE[self.dtype]


def precision() -> Precision:
    """The precision for the device that this process has leased; each call makes a scaler of its own.

    BF16 where the device computes it fast, else FP16 with a scaled loss, else FP32. A device that is not known gets
    FP32, and the log says so.
    """
    features = leased_features()
    chosen = precision_of(features, torch_device().type)
    if features.unknown:
        logger.info("The features of the leased device are not known (%s): it trains in FP32.", features.unknown)
    else:
        logger.info("Training in %s on %s.", features.training_dtype.upper(), features.architecture)
    return chosen


def precision_of(features: DeviceFeatures, device_type: str) -> Precision:
    """The precision for a device with these features."""
    dtype = _DTYPES[features.training_dtype]
    return Precision(device_type, dtype, LossScaler(device_type, enabled=dtype is torch.float16))
