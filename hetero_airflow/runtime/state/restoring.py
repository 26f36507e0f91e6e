"""Restoring a training: its objects, and the random generators of its process.

A task hears before its first step whether its state can be saved and restored.
"""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from hetero_airflow.errors import InvalidCheckpoint, RequestError, shorten
from hetero_airflow.runtime.loading.random_streams import generator_states, restore_generators
from hetero_airflow.runtime.state.tree import MAPPINGS, MAX_DEPTH, has_state_dict, holds_objects, stage

logger = logging.getLogger(__name__)


class Rng:
    """The random generators of this process: Python's, numpy's, torch's on the CPU and on each GPU.

    >>> import random
    >>> rng = Rng()
    >>> before = rng.state_dict()
    >>> first = random.random()
    >>> rng.load_state_dict(before)
    >>> random.random() == first
    True
    """

    def state_dict(self) -> dict[str, Any]:
        """The states of the generators of all imported libraries."""
        state, torch = generator_states(), sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the generators; those of missing GPUs are skipped."""
        restore_generators(state)
        if "cuda" in state:
            import torch

            for number, generator in enumerate(state["cuda"][: torch.cuda.device_count()]):
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


_CONSTANTS = (type(None), bool, int, float, str)


def check_restorable(state: Any) -> None:
    """Refuse a state that can't be saved, or could be saved but not restored. Copies its plain values once.

    :raises RequestError: names the first part that is refused
    """
    if not isinstance(state, Mapping) and not has_state_dict(state):
        raise RequestError(
            "state",
            state,
            found=f"a value of the type {type(state).__name__}",
            remedy='Write a dict, such as state={"total": 0}, or pass an object with load_state_dict()',
        )
    _check_part(state, "state", 0)


def _check_part(part: Any, where: str, depth: int) -> None:
    if has_state_dict(part):
        if not callable(getattr(part, "load_state_dict", None)):
            raise RequestError(
                where,
                part,
                found="state_dict() without load_state_dict()",
                remedy="Give it load_state_dict(), or save its values in a dict",
            )
    elif isinstance(part, Mapping) and depth <= MAX_DEPTH and (not depth or holds_objects(part)):
        _check_savable(dict.fromkeys(part) if type(part) in MAPPINGS else part, where)
        for name, item in part.items():
            _check_part(item, f"{where}[{name!r}]", depth + 1)
    elif isinstance(part, (list, tuple)) and holds_objects(part):
        raise RequestError(
            where,
            part,
            found="a list of objects with state_dict(), which can't be restored in place",
            remedy='Name each object in a dict, such as {"first": model}',
        )
    else:
        _check_savable(part, where)


def _check_savable(value: Any, where: str) -> None:
    try:
        stage(value, where=where)
    except InvalidCheckpoint as error:
        place = error.asked.removeprefix("to save ")
        found = error.found if place == where else f"{error.found} at {place}"
        raise RequestError(where, value, found=found, remedy=error.remedy) from error


class LostChanges:
    """Warns of what a task would miss after the next restore. Make it when the state is restored."""

    def __init__(self, state: Any) -> None:
        self._state = state if isinstance(state, Mapping) else {}
        self._names = set(self._state)
        are_constant = all(type(value) in _CONSTANTS for value in self._state.values())
        self._constants = dict(self._state) if are_constant else {}
        self._is_unchanged = False
        """Whether it was so at one save. A first step may well add 0 to 0."""

    def warn(self) -> None:
        """Call it before each save; it warns of the same thing once."""
        for name in [name for name in self._state if name not in self._names]:
            self._names.add(name)
            logger.warning(
                "state[%r] is saved but will not be restored: pass its first value to checkpoint.steps(state=...) too",
                name,
            )
        if self._constants != self._state:
            self._constants = {}
        if self._constants and self._is_unchanged:
            name = next(iter(self._constants))
            logger.warning(
                "The state has not changed since the loop began, two saves ago: %s. A local variable is not saved: "
                "set checkpoint.state[%r]",
                shorten(self._constants),
                name,
            )
            self._constants = {}
        self._is_unchanged = True
