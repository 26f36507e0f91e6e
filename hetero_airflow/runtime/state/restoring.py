"""Restoring a training: its objects, and the random generators of its process."""

import logging
import random
import sys
from collections.abc import Mapping
from typing import Any

from hetero_airflow.errors import InvalidCheckpoint, shorten
from hetero_airflow.runtime.state.tree import has_state_dict, holds_objects

logger = logging.getLogger(__name__)


class Rng:
    """The random generators of this process: Python's, numpy's, torch's on the CPU and on each GPU.

    >>> rng = Rng()
    >>> before = rng.state_dict()
    >>> first = random.random()
    >>> rng.load_state_dict(before)
    >>> random.random() == first
    True
    """

    def state_dict(self) -> dict[str, Any]:
        """The states of the generators of all imported libraries."""
        state: dict[str, Any] = {"python": random.getstate()}
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None:
            state["numpy"] = numpy.random.get_state(legacy=False)
        if torch is not None:
            state["torch"] = torch.get_rng_state()
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the generators; those of missing GPUs are skipped."""
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers), gauss))
        if "numpy" in state:
            import numpy as np

            np.random.set_state(state["numpy"])
        if "torch" in state:
            import torch

            torch.set_rng_state(state["torch"])
            for number, generator in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(generator, number)


def restore(state: Any, saved: Any, where: str = "state") -> None:
    """Restore an object, or each part of a dict, from its saved state.

    Lists, dicts, arrays, tensors, pandas' tables and estimators are filled in place if the saved value fits, so the
    task's own variables stay valid.

    :raises InvalidCheckpoint: the checkpoint has no such name
    """
    if has_state_dict(state):
        state.load_state_dict(saved)
        return
    for name, item in state.items():
        if not isinstance(saved, Mapping) or name not in saved:
            names = ", ".join(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
            raise InvalidCheckpoint(
                f"to restore {where}[{name!r}]",
                found=f"a checkpoint with only {shorten(names)}",
                remedy="Use the names of the save, or clear the task to start from the beginning",
            )
        if holds_objects(item):
            restore(item, saved[name], f"{where}[{name!r}]")
        else:
            state[name] = _filled(item, saved[name])
    for name in [name for name in saved if name not in state]:
        logger.warning("The checkpoint has %s[%r], which this task does not restore; it is ignored", where, name)


def _filled(current: Any, saved: Any) -> Any:
    """The saved value; it is the current object, with new content, if that can hold it."""
    if isinstance(current, dict) and isinstance(saved, dict):
        current.clear()
        current.update(saved)
        return current
    if isinstance(current, list) and isinstance(saved, list):
        current[:] = saved
        return current
    return current if _copy_array(current, saved) or _refill(current, saved) else saved


def _refill(current: Any, saved: Any) -> bool:
    """Give an estimator or a table of pandas the content of another of its type; False for other types."""
    if type(current) is not type(saved):
        return False
    pandas, sklearn = sys.modules.get("pandas"), sys.modules.get("sklearn.base")
    if sklearn is not None and isinstance(current, sklearn.BaseEstimator):
        vars(current).clear()
        vars(current).update(vars(saved))
        return True
    if pandas is not None and type(current) in (pandas.DataFrame, pandas.Series):
        type(current).__init__(current, saved)  # pandas has no other way to replace the rows and columns in place
        return True
    return False


def _copy_array(current: Any, saved: Any) -> bool:
    """Copy an array or a tensor into one of the same shape and type, on its device; False if that can't be done."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = [*([numpy.ndarray] if numpy else []), *([torch.Tensor] if torch else [])]
    if not any(isinstance(current, kind) and isinstance(saved, kind) for kind in kinds):
        return False
    if (current.shape, current.dtype) != (saved.shape, saved.dtype):
        return False
    if torch is not None and isinstance(current, torch.Tensor):
        current.detach().copy_(saved)
    elif current.flags.writeable:
        current[...] = saved
    else:
        return False
    return True
