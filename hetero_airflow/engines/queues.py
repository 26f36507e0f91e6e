"""The names of the queues that workers listen to."""

from __future__ import annotations

_PREFIX = "hetero."


def queue_of(worker_id: str) -> str:
    """The queue of one worker, for ``airflow celery worker --queues``; nobody else may listen to it.

    >>> queue_of("gpu-7")
    'hetero.gpu-7'
    """
    return _PREFIX + worker_id
