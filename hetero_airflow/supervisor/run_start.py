"""What a run needs before its process starts: a record of its lease, its devices, and the control folder."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import TaskAlreadyRunningError

from hetero_airflow.checkpoints.configured import checkpoint_options, record_installation_key
from hetero_airflow.checkpoints.opening import split_url
from hetero_airflow.checkpoints.place import checkpoint_path
from hetero_airflow.contract.task_lease import TaskLease, lease_grant
from hetero_airflow.engines.host.lease_files import LeaseInUse
from hetero_airflow.errors import HeteroError
from hetero_airflow.model.grant import Grant
from hetero_airflow.runtime.scratch_folder import ScratchFolder, remove_abandoned
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import CONTROL_VARIABLE
from hetero_airflow.supervisor.run_processes import RunProcesses, contained_run

_CONTROL_PREFIX = "hetero-airflow-task-"
"""Start of the name of the control folder. Earlier versions had another one, and did not lock the folder."""


@contextmanager
def prepared_run(
    task_instance: Any, lease: TaskLease | None, logger: Any
) -> Iterator[tuple[RunProcesses | None, Path]]:
    """Within the context the task may start: its lease is recorded and bound, and its control folder exists.

    At the end no process of the task is left.

    :param task_instance: names the DAG, the run and the task
    :raises TaskAlreadyRunningError: a run under the lease goes on here; Celery then ignores the message
    :raises HeteroError: one of them is not possible, or the lease's grant does not fit; the task's log says so
    """
    with ExitStack() as stack:
        try:
            grant = _checked_grant(task_instance, lease) if lease else None
            run = stack.enter_context(contained_run(lease, logger)) if lease else None
            if grant:  # from here on, the lease counts as long as this process
                grant.check_start(datetime.now(UTC))
                _record_key(grant, logger)
            stack.enter_context(bound_to_lease(lease) if lease else nullcontext())
            folder = stack.enter_context(control_folder())
        except LeaseInUse as error:
            raise TaskAlreadyRunningError(str(error)) from error
        except HeteroError as error:
            if logger:
                with suppress(OSError):  # the log may be on the same full disk
                    logger.error("The task does not start", reason=str(error))  # noqa: TRY400  no bug of ours
            raise
        yield run, folder


def _checked_grant(task_instance: Any, lease: TaskLease) -> Grant | None:
    """The grant with which a scheduler gave the lease to this task; None if it signs nothing.

    The scheduler's key comes with the lease, in the message of the task. Who can write that message can run any code.

    :raises GrantRefused: otherwise
    """
    task = checkpoint_path(
        task_instance.dag_id,
        task_instance.task_id,
        task_instance.run_id,
        -1 if task_instance.map_index is None else task_instance.map_index,
    )
    grant = lease_grant(lease, task)
    if grant is not None:
        grant.check(token=lease.token, task=task, key=grant.key)
    return grant


def _record_key(grant: Grant, logger: Any) -> None:
    """Record the scheduler's key in this host's folder of checkpoints, before any code of the task runs.

    A scheduler may not reach that folder. It records the key in an object store, once for all tasks.
    """
    try:
        if split_url(checkpoint_options().url).scheme == "file":
            record_installation_key(grant.key)
    except HeteroError as error:  # the task may save nothing
        if logger:
            logger.info("The key for grants is not recorded in the folder of checkpoints", reason=str(error))


@contextmanager
def control_folder() -> Iterator[Path]:
    """A folder that the task and its supervisor share. The environment names it while the task runs.

    :raises HeteroError: it can't be made
    """
    try:
        folder = ScratchFolder(_CONTROL_PREFIX, removes_abandoned=False)
    except OSError as error:
        raise HeteroError(
            "a folder for the task and its supervisor",
            found=str(error),
            remedy="Free disk space in the folder for temporary files, or let this user write there",
        ) from error
    os.environ[CONTROL_VARIABLE] = str(folder.root)
    try:
        yield folder.root
    finally:
        del os.environ[CONTROL_VARIABLE]
        folder.remove()
        remove_abandoned(_CONTROL_PREFIX)  # at the end of a run, so that no start waits for it
