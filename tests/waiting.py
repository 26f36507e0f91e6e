"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 600.0
"""How long to wait for what must come. Only a fault takes this long, also on a slow and busy host."""

Result = TypeVar("Result")


def eventually(condition: Callable[[], Result], timeout_s: float = PATIENCE_S) -> Result:
    """Wait until the condition is true; return its value, or fail."""
    end = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < end, f"it did not come about in {timeout_s:g} s"
        time.sleep(0.01)
    return result
