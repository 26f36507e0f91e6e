"""The names of the queues that workers listen to."""

from __future__ import annotations

_PREFIX = "hetero."


def worker_queue(worker_id: str) -> str:
    """The queue of one worker, for ``airflow celery worker --queues``; nobody else may listen to it.

    >>> worker_queue("gpu-7")
    'hetero.gpu-7'
    """
    return _PREFIX + worker_id
