"""Random numbers for the data, apart from those of the training.

What a data set draws depends only on a seed, the epoch and the batch: not on who loads the batch, nor when.
"""

import random
import sys
from collections.abc import Mapping
from hashlib import blake2b
from types import TracebackType
from typing import Any


def derived_seed(*parts: int | str) -> int:
    """A seed of 63 bits, from numbers such as a first seed, a rank, an epoch and a batch.

    >>> derived_seed(1, 2) == derived_seed(1, 2) != derived_seed(2, 1)
    True
    """
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1


def seed_generators(seed: int) -> None:
    """Seed the generators that code on the CPU uses: Python's, and numpy's and torch's if they are imported."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if torch is not None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed changes the generators of the GPUs, too


def generator_states() -> dict[str, Any]:
    """The states of these generators."""
    states: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state(legacy=False)
    if torch is not None:
        states["torch"] = torch.get_rng_state()
    return states


def restore_generators(states: Mapping[str, Any]) -> None:
    """Restore what `generator_states` returned."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])


class RandomStream:
    """While it is entered, the generators of this process are those of the stream. It can be entered again.

    >>> stream = RandomStream(7)
    >>> with stream:
    ...     first = random.random()
    >>> with RandomStream(7):
    ...     assert random.random() == first
    >>> stream.was_used
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: dict[str, Any] | None = None
        self._outside: dict[str, Any] = {}
        self.was_used = False
        """Whether a number was drawn the last time."""

    def __enter__(self) -> None:
        self._outside = generator_states()
        if self._states is None:
            seed_generators(self._seed)
            self._states = generator_states()
        else:
            restore_generators(self._states)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before, self._states = self._states, generator_states()
        self.was_used = before is None or not _are_equal(before, self._states)
        restore_generators(self._outside)


def _are_equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return (
        first.keys() == second.keys()
        and first["python"] == second["python"]
        and ("numpy" not in first or _numbers(first["numpy"]) == _numbers(second["numpy"]))
        and ("torch" not in first or bool(first["torch"].equal(second["torch"])))
    )


def _numbers(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]
