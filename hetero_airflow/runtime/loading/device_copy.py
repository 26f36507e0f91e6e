"""Copies batches to a device while what came before them computes there."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hetero_airflow.errors import RequestError

if TYPE_CHECKING:
    import torch

Leaf = Callable[[Any], Any]


class DeviceCopy:
    """Copies the tensors of a batch on a stream of its own, from pinned memory.

    A batch is a tensor, an object with a method ``to``, or a list, tuple or dict of them; all else stays as it is. What
    is no tensor is copied only when it is used, since nobody else knows when its memory is free again.

    :param device: of torch, but no CPU
    """

    def __init__(self, device: "torch.device") -> None:
        import torch

        self._torch = torch
        self._device = device
        accelerator = torch.accelerator.current_accelerator()
        self._is_accelerator = accelerator is not None and accelerator.type == device.type
        self._stream = torch.Stream(device) if self._is_accelerator else None

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """Begin to copy, in any thread; what `end` takes."""
        if self._stream is None:
            return _mapped(batch, self._copied), None
        with self._stream:
            copied = _mapped(batch, self._copied)
            return copied, self._stream.record_event()

    def end(self, copied: tuple[Any, Any]) -> Any:
        """The batch on the device, for the present stream of this thread."""
        batch, event = copied
        if event is None:
            return _mapped(batch, self._used)
        stream = self._torch.accelerator.current_stream(self._device)
        stream.wait_event(event)

        def used(leaf: Any) -> Any:
            if isinstance(leaf, self._torch.Tensor):
                leaf.record_stream(stream)
            return self._used(leaf)

        return _mapped(batch, used)

    def _copied(self, leaf: Any) -> Any:
        if not isinstance(leaf, self._torch.Tensor):
            return leaf
        pinned = leaf.pin_memory() if self._is_accelerator and leaf.device.type == "cpu" else leaf
        return pinned.to(self._device, non_blocking=True)

    def _used(self, leaf: Any) -> Any:
        is_tensor = isinstance(leaf, self._torch.Tensor)
        return leaf.to(self._device) if hasattr(leaf, "to") and not is_tensor else leaf


def device_copy(device: Any) -> DeviceCopy | None:
    """What copies to this device; None for no device and for a CPU.

    :raises RequestError: torch knows no such device, or can't use it here
    """
    if device is None:
        return None
    import torch

    try:
        known = torch.device(device)
        torch.empty(0, device=known)
    except (RuntimeError, TypeError, AssertionError) as error:
        remedy = "Pass torch_device(), or a name such as cuda:0"
        raise RequestError("device", device, found=str(error).splitlines()[0], remedy=remedy) from None
    return None if known.type == "cpu" else DeviceCopy(known)


def _mapped(value: Any, leaf: Leaf) -> Any:
    """A copy of nested lists, tuples and dicts with other leaves.

    >>> _mapped({"a": [1, (2,)]}, str)
    {'a': ['1', ('2',)]}
    """
    if hasattr(value, "to"):
        return leaf(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, leaf) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, leaf) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(item, leaf) for item in value)
    return leaf(value)
