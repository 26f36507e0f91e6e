"""Checkpoints from inside a task: save, load the latest one, stop at a notice.

A loop that can be interrupted after any step, and continues there later, on the same or another device::

    from hetero_airflow.runtime import checkpoint

    data = checkpoint.loader(DataLoader(data_set, batch_size=32, shuffle=True))
    state = {"model": model, "optimizer": optimizer, "data": data, "rng": checkpoint.Rng()}
    for step in checkpoint.steps(10_000, every="5m", state=state):
        train(next(data))

A loop with plain values: numbers, texts, lists, dicts, numpy arrays. They are read and changed through
`checkpoint.state`::

    for step in checkpoint.steps(10_000, state={"sum": 0, "best": {}}):
        checkpoint.state["sum"] += work(step)

A loop that saves its state itself::

    last = checkpoint.latest()
    weights = last.state["weights"] if last else fresh()
    for step in checkpoint.steps(10_000, every=100):
        weights = improve(weights)
        if checkpoint.is_due():
            checkpoint.save(step, {"weights": weights}, metrics={"loss": loss})

The executor passes the place of the checkpoints in the environment. Without an executor it is the folder
``checkpoints``. A process has only one place, so this module has functions and no object to pass around.
"""

import os
from collections.abc import Iterator, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.contract.notice import Stopped
from hetero_airflow.errors import RequestError
from hetero_airflow.runtime.cached_checkpoints import with_host_cache
from hetero_airflow.runtime.checkpoint_session import Checkpoint, CheckpointSession, read_place, read_published
from hetero_airflow.runtime.loading.loader import Loader
from hetero_airflow.runtime.state.restoring import Rng
from hetero_airflow.runtime.state.sharded import load_distributed as _load_distributed
from hetero_airflow.runtime.state.sharded import save_distributed as _save_distributed
from hetero_airflow.runtime.step_loop import StepLoop
from hetero_airflow.settings import CHECKPOINT_VARIABLE, CONTROL_VARIABLE

__all__ = [
    "Checkpoint",
    "Rng",
    "Stopped",
    "is_due",
    "latest",
    "load_distributed",
    "loader",
    "open_published",
    "save",
    "save_distributed",
    "should_stop",
    "steps",
    "wait",
]


if TYPE_CHECKING:
    state: Any
    """What the newest loop of `steps` saves and restores; it can be read from the first step on."""
else:

    def __getattr__(name: str) -> Any:
        if name != "state":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        state = session().state
        if state is None:
            raise RequestError(
                "checkpoint.state",
                None,
                found="no loop that has begun with a state",
                remedy='Read it in a loop such as `for step in checkpoint.steps(100, state={"sum": 0})`',
            )
        return state


def session() -> CheckpointSession:
    """The checkpoint session of this process; it opens no connection yet.

    :raises SettingsError: the place in the environment, or the settings of its store, can't be read
    """
    return _session(os.environ.get(CHECKPOINT_VARIABLE), os.environ.get(CONTROL_VARIABLE))


@lru_cache(maxsize=1)
def _session(place_text: str | None, control: str | None) -> CheckpointSession:
    place = read_place(place_text)
    return CheckpointSession(place, with_host_cache(open_store(place), place), Path(control) if control else None)


def save(
    step: int,
    state: object,
    *,
    metrics: Mapping[str, float] | None = None,
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    wait: bool = False,
    final: bool = False,
) -> None:
    """Save the state after a step (counted from 0).

    A state consists of JSON values, tensors, arrays, bytes, tuples, and objects with ``state_dict()``. `files` maps
    names to paths. Everything is copied before this returns, then written and published in the background, after the
    previous save. With `wait`, it is published on return. `final` marks the checkpoint of finished work.

    In a task of several processes only rank 0 saves; the others return at once. Outside of `steps`, if a single process
    has a notice, this waits for the save and raises `Stopped`.

    :raises InvalidCheckpoint: a part of the state that only pickle can represent, a metric that is not a finite number,
        or a file name outside of the checkpoint; nothing is saved
    :raises CheckpointError: this save failed, or the previous one failed in the background
    """
    session().save(step, state, metrics=metrics, files=files, wait=wait, final=final)


def save_distributed(
    step: int,
    state_dict: Mapping[str, Any],
    *,
    metrics: Mapping[str, float] | None = None,
    wait: bool = False,
    final: bool = False,
) -> None:
    """Save a state whose tensors are sharded over the ranks (FSDP, DTensor), after a step. All ranks call it.

    `state_dict` has the form that torch.distributed.checkpoint takes: dicts and lists of tensors and JSON values. Each
    rank copies its shards and writes them in the background; rank 0 publishes all of them as one checkpoint.

    :raises InvalidCheckpoint: a part that can't be saved, or ranks that do not share rank 0's temporary folder
    :raises CheckpointError: this save failed, or the previous one failed in the background
    """
    _save_distributed(session(), step, state_dict, metrics=metrics, wait=wait, final=final)


def load_distributed(state_dict: MutableMapping[str, Any]) -> int | None:
    """Fill a sharded state from the latest checkpoint, saved by any number of ranks. All ranks call it.

    Tensors are filled in place, and other values are replaced. Returns the checkpoint's step; None without one.

    :raises InvalidCheckpoint: the checkpoint lacks a part of the state
    """
    return _load_distributed(session(), state_dict)


def latest() -> Checkpoint | None:
    """The newest intact checkpoint of this task; None before the first one, and after the task was cleared.

    The first call begins this run: an earlier run that is still alive can't publish any more. If a checkpoint is
    damaged, a warning is logged and the previous one is returned.

    :raises FencedOut: a later run has begun
    :raises CheckpointStoreUnavailable: the store does not answer
    """
    return session().latest()


def open_published(manifest: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint of another task that `CheckpointSensor` returned.

    :raises InvalidCheckpoint: it is not kept any more, or it is damaged
    :raises CheckpointStoreUnavailable: the store does not answer
    """
    return read_published(session().place, manifest)


def steps(
    total: int, every: object = "5m", state: Any = None, metrics: Mapping[str, float] | None = None
) -> Iterator[int]:
    """The remaining steps, from the one after the latest checkpoint to `total` - 1.

    `every` is a duration (``"5m"``) or a number of steps (``100``). `state` is an object with ``state_dict()`` and
    ``load_state_dict()``, or a dict of such objects and of plain values, which `save` lists. It is restored before the
    first step, saved by `every`, and saved after the last step. Change plain values through `checkpoint.state`, which
    is that dict; local variables are not saved. `metrics` is a mapping that the loop body updates. Without a `state`,
    the loop body saves when `is_due` is true.

    At a notice, the current step ends and is saved, then `Stopped` is raised. If that save fails, the error is logged,
    the previous checkpoint stays, and the task stops. If a periodic save fails because the store does not answer, the
    error is logged, and the next periodic save tries again.

    Under torch.distributed every rank must loop; rank 0 decides and saves.

    :raises RequestError: an invalid argument, or a value in the state that can't be saved; raised before the first step
    :raises CheckpointError: a save failed
    """
    return iter(StepLoop(session(), total, every, state, metrics))


def loader(source: Any, prefetch: int = 2, device: Any = None) -> Loader:
    """An iterator over the batches of a DataLoader, epoch after epoch without end, for the state of `steps`.

    `source` is a DataLoader, a data set of torch (each item is a batch), or an object that can be iterated again and
    again. The next `prefetch` batches are loaded while a step computes. With a `device`, such as ``torch_device()``,
    they are also copied to it meanwhile, from pinned memory and on a stream of their own. After an interruption it
    goes on with the batch after the last one that the task has used, in the same order and with the same random
    numbers, with loader workers and in each rank too. Its seed is ``torch.initial_seed()``; with several ranks it
    comes from the task and its run.

    What the data set draws from Python's, numpy's or torch's generators is repeated. Numbers from a generator that the
    data set has made for itself are not. Batches of an iterable data set that were used are loaded again and skipped.

    ::

        data = checkpoint.loader(DataLoader(data_set, batch_size=32, shuffle=True, num_workers=2))
        for step in checkpoint.steps(10_000, state={"model": model, "data": data, "rng": checkpoint.Rng()}):
            train(next(data))

    :raises RequestError: it can't be iterated again and again, or torch can't use the device
    """
    return Loader(source, prefetch, device, session)


def is_due() -> bool:
    """Whether the task should save now: by the loop's `every`, or at a notice. Outside of `steps`, only at a notice."""
    loop_is_due = session().is_due
    return should_stop() if loop_is_due is None else loop_is_due()


def should_stop() -> bool:
    """Whether the task has a notice to save and stop. Takes about a microsecond."""
    return session().should_stop()


def wait() -> None:
    """Return when all saves are published.

    :raises CheckpointError: a save failed
    """
    session().wait()
