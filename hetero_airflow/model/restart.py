"""What it costs to interrupt a run: the time until it is where it was."""

from __future__ import annotations


def usual_restart_s(devices: int) -> float:
    """7 s for one device, 30 s for up to 8, 60 s for more: save, start and restore of measured training jobs.

    >>> [usual_restart_s(n) for n in (1, 8, 9)]
    [7.0, 30.0, 60.0]
    """
    return 7.0 if devices <= 1 else 30.0 if devices <= 8 else 60.0
