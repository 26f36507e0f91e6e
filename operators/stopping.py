"""A task that was told to stop is rescheduled, however it ends: with the same try, and no retry used up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowRescheduleException

from hetero_airflow.runtime.notice import Stopped, has_notice
from hetero_airflow.settings import CONTROL_VARIABLE


@contextmanager
def rescheduled_if_preempted(log: Any) -> Iterator[None]:
    """Within: a task that says that it has stopped, or fails after a notice, goes back to be scheduled.

    :raises AirflowRescheduleException: it has
    """
    try:
        yield
        _wait_for_saves()
    except AirflowRescheduleException:
        raise
    except (Stopped, Exception) as error:
        if not (isinstance(error, Stopped) or has_preemption_notice()):
            raise
        log.warning("Preempted: the task has stopped (%s); it goes on later, with the same try.", error)
        raise AirflowRescheduleException(datetime.now(UTC)) from None


def raise_if_preempted() -> None:
    """For `on_kill`: end the task as stopped if there is a notice.

    It runs in a signal handler, in the middle of whatever the task does: to call Airflow from there would deadlock.

    :raises AirflowRescheduleException: there is one
    """
    if has_preemption_notice():
        raise AirflowRescheduleException(datetime.now(UTC))


def _wait_for_saves() -> None:
    """Let a checkpoint that is being written be published: Airflow ends the process without asking."""
    checkpoint = sys.modules.get("hetero_airflow.runtime.checkpoint")
    if checkpoint is not None:
        checkpoint.wait()


def has_preemption_notice() -> bool:
    """Whether there is a notice for the task of this process."""
    folder = os.environ.get(CONTROL_VARIABLE)
    return folder is not None and has_notice(Path(folder))
