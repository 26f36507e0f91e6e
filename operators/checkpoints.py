"""Sets where the task's checkpoints are, before any of its code runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

from airflow.sdk import Context
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hetero_airflow.checkpoints.configured import (
    CheckpointOptions,
    checkpoint_options,
    checkpoint_place,
    data_settings,
    store_credentials,
    store_fields,
)
from hetero_airflow.checkpoints.fencing import record_key
from hetero_airflow.checkpoints.opening import check_url, open_store
from hetero_airflow.checkpoints.place import CheckpointPlace, checkpoint_path
from hetero_airflow.contract.local_run import is_local_run
from hetero_airflow.contract.state_keys import CHECKPOINT
from hetero_airflow.contract.task_lease import TaskLease, lease_grant
from hetero_airflow.errors import HeteroError, RequestError
from hetero_airflow.model.request_fields import unknown_field
from hetero_airflow.runtime.visible_devices import environment_set
from hetero_airflow.settings import CHECKPOINT_VARIABLE, DATA_VARIABLE, PROFILE_VARIABLE
from hetero_airflow.validation import first_problem


class CheckpointArguments(BaseModel):
    """The operator's argument `checkpoint`: the place of checkpoints, which are kept, and the effect of a clear.

    >>> CheckpointArguments.parse({"keep_best": "min:loss"}).keep_last
    3
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = None
    """The place, if it is not ``[hetero] checkpoint_url``."""
    keep_last: int = Field(default=3, ge=1, strict=True)
    keep_best: str | None = Field(default=None, pattern=r"^(min|max):.{1,128}$")
    """``min:loss`` or ``max:accuracy``: also keep the best checkpoint by a metric."""
    keep_every: int | None = Field(default=None, ge=1, strict=True)
    """Also keep the checkpoints at multiples of this many steps."""
    on_clear: Literal["fresh", "resume"] = "fresh"
    """Whether a cleared task starts fresh or resumes from its last checkpoint."""

    @classmethod
    def parse(cls, value: object) -> "CheckpointArguments":
        """Parse the argument. None means all defaults.

        :raises RequestError: the argument is invalid
        """
        if not isinstance(value, Mapping | None):
            found = f"a value of the type {type(value).__name__}"
            raise RequestError("checkpoint", value, found=found, remedy=_REMEDY)
        for field, setting in (value or {}).items():
            if field not in cls.model_fields:
                raise unknown_field("checkpoint", field, setting, cls.model_fields)
        try:
            arguments = cls(**(value or {}))
        except ValidationError as error:
            path, found = first_problem(error)
            remedy = _VALID.get(path, _REMEDY)
            raise RequestError(f"checkpoint.{path}", error.errors()[0]["input"], found=found, remedy=remedy) from None
        if arguments.url is not None:
            check_url(arguments.url, "checkpoint.url")
        return arguments


_REMEDY = f"Give a mapping with any of {', '.join(CheckpointArguments.model_fields)}"
_VALID = {
    "url": 'Write a URL such as "s3://bucket/prefix" or "file:///shared/folder"',
    "keep_last": "Give a whole number from 1",
    "keep_best": 'Write it as "min:loss" or "max:accuracy"',
    "keep_every": "Give a whole number of steps from 1",
    "on_clear": 'Write "fresh" or "resume"',
}

HOST_BOUND = "is_host_bound"
"""The field of `CheckpointPlace` that goes with its URL."""


def parse_profile(value: object) -> bool:
    """The argument `profile`: whether some steps are profiled.

    :raises RequestError: neither True nor False
    """
    if value is not None and not isinstance(value, bool):
        raise RequestError("profile", value, found="neither True nor False", remedy="Use profile=True, or leave it out")
    return bool(value)


@contextmanager
def checkpoint_environment_set(
    context: Context,
    arguments: CheckpointArguments,
    lease: TaskLease | None,
    *,
    is_one_training: bool = False,
    profiles: bool = False,
) -> Iterator[None]:
    """Within the context this process and its children have what `checkpoint_variables` says.

    A task keeps the place where it began, even if the configuration names another one now: its state store has it.

    :param lease: of this run; None without one
    :param is_one_training: the gang's members are one training, which uses the leader's place
    :param profiles: some steps of the task are profiled
    :raises SettingsError: the configuration can't be read, or names a missing connection
    """
    variables = checkpoint_variables(context, arguments, lease, is_one_training=is_one_training)
    with environment_set(variables | {PROFILE_VARIABLE: str(int(profiles))}):
        if arguments.url:
            _record_key(CheckpointPlace.model_validate_json(variables[CHECKPOINT_VARIABLE]), lease)
        yield


def _record_key(place: CheckpointPlace, lease: TaskLease | None) -> None:
    """Record the scheduler's key in a store that only the task names. What fails here fails at the first save too."""
    with suppress(HeteroError):
        if lease is not None and (grant := lease_grant(lease, place.path)):
            record_key(open_store(place), grant.key)


def checkpoint_variables(
    context: Context, arguments: CheckpointArguments, lease: TaskLease | None, *, is_one_training: bool = False
) -> dict[str, str]:
    """The environment variables with the place of the task's checkpoints, its credentials, and its host's cache.

    Also records the place in the task's state store.

    :raises SettingsError: the configuration can't be read, or names a missing connection
    """
    options = checkpoint_options()
    credentials = store_credentials(options)
    place = _place(context, arguments, lease, options, credentials)
    gang = lease.gang if lease and is_one_training else None
    if gang is not None:
        ti: Any = context["ti"]
        path = checkpoint_path(ti.dag_id, ti.task_id, ti.run_id, gang.first_index)
        # only the leader claims the place, before the others read it, and decides the epoch
        place = place.model_copy(update={"path": path} | ({"epoch": None} if gang.rank else {}))
    states: Any = context.get("task_state_store")
    if states is not None and not is_local_run():
        recorded = states.get(CHECKPOINT)
        if isinstance(recorded, dict) and recorded.get("epoch") == place.epoch and isinstance(recorded.get("url"), str):
            fields = store_fields(recorded["url"], options, credentials)
            place = place.model_copy(update=fields | {HOST_BOUND: recorded.get(HOST_BOUND) is True})
        states.set(CHECKPOINT, place.model_dump(include={"url", "path", "epoch", HOST_BOUND}))
    data = data_settings(options, credentials).model_dump_json()
    return {**credentials, CHECKPOINT_VARIABLE: place.model_dump_json(), DATA_VARIABLE: data}


def _place(
    context: Context,
    arguments: CheckpointArguments,
    lease: TaskLease | None,
    options: CheckpointOptions,
    credentials: Mapping[str, str],
) -> CheckpointPlace:
    ti: Any = context["ti"]
    place = checkpoint_place(
        ti.dag_id,
        ti.task_id,
        ti.run_id,
        -1 if ti.map_index is None else ti.map_index,
        # Airflow raises max_tries when the task is cleared, never for a retry
        epoch=ti.max_tries if arguments.on_clear == "fresh" else None,
        token=lease.token if lease else None,
        options=options,
        credentials=credentials,
    )
    retention = arguments.model_dump(include={"keep_last", "keep_best", "keep_every"})
    if arguments.url and not is_local_run():
        return place.model_copy(update=retention | store_fields(arguments.url, options, credentials))
    is_host_bound = options.is_default and lease is not None and lease.is_remote
    return place.model_copy(update=retention | {HOST_BOUND: is_host_bound})
