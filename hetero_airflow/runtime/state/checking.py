"""Whether a state can be saved and restored; a task hears of it before its first step."""

import logging
from collections.abc import Mapping
from typing import Any

from hetero_airflow.errors import InvalidCheckpoint, RequestError, shorten
from hetero_airflow.runtime.state.tree import MAPPINGS, MAX_DEPTH, has_state_dict, holds_objects, stage

logger = logging.getLogger(__name__)

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

    def warn(self) -> None:
        """Call it before each save; it warns of the same thing once."""
        for name in [name for name in self._state if name not in self._names]:
            self._names.add(name)
            logger.warning(
                "state[%r] is saved but will not be restored: pass its first value to checkpoint.steps(state=...) too",
                name,
            )
        if self._constants and self._constants == self._state:
            name = next(iter(self._constants))
            logger.warning(
                "The state has not changed since the loop began: %s. A local variable is not saved: "
                "set checkpoint.state[%r]",
                shorten(self._constants),
                name,
            )
        self._constants = {}
