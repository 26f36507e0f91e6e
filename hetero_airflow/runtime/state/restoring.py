"""Restoring a training: its objects, and the random generators of its process."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Mapping
from typing import Any

from hetero_airflow.errors import InvalidCheckpoint, RequestError, shorten

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
    """Restore an object, or each object of a mapping, from its saved state.

    :raises InvalidCheckpoint: the checkpoint has no such name
    """
    if not isinstance(state, Mapping):
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
        restore(item, saved[name], f"{where}[{name!r}]")
    for name in [name for name in saved if name not in state]:
        logger.warning("The checkpoint has %s[%r], which this task does not restore; it is ignored", where, name)


def check_restorable(state: Any, where: str = "state") -> None:
    """Refuse a state that could be saved but not restored in place.

    :raises RequestError: a part without state_dict() or load_state_dict()
    """
    if isinstance(state, Mapping):
        for name, item in state.items():
            check_restorable(item, f"{where}[{name!r}]")
    elif not (callable(getattr(state, "state_dict", None)) and callable(getattr(state, "load_state_dict", None))):
        raise RequestError(
            where,
            state,
            found=f"a {type(state).__name__}, without state_dict() and load_state_dict()",
            remedy="Save it in the loop body when checkpoint.is_due() is true, or wrap it",
        )
