"""When garbage is collected: between cycles, not in the middle of one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_garbage_collection() -> Iterator[None]:
    """Whatever Python's cyclic collector would do meanwhile is done afterwards.

    A cycle makes a decision for each request, and all of them live until the next cycle: a collection in
    between looks at all objects of the process, finds nothing, and what was placed starts later for it.
    Measured with 1,000 workers and 10,000 waiting requests (200,000 objects): 100 to 200 ms every fifth cycle.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
