"""Checkpoints from inside the task: save, find the latest one, stop when asked to.

A loop that can be interrupted after any step, and that goes on where it was on whatever device it has next::

    from hetero_airflow.runtime import checkpoint

    state = {"model": model, "optimizer": optimizer, "data": data, "rng": checkpoint.Rng()}
    for step in checkpoint.steps(10_000, every="5m", state=state):
        train(next(data))

A loop that keeps its state itself::

    last = checkpoint.latest()
    weights = last.state["weights"] if last else fresh()
    for step in checkpoint.steps(10_000, every=100):
        weights = improve(weights)
        if checkpoint.is_due():
            checkpoint.save(step, {"weights": weights}, metrics={"loss": loss})

The place is in the environment that the executor gives the task; on a laptop it is the folder ``checkpoints``. One
process has one place, hence functions and not an object to hand around.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.runtime.notice import Stopped
from hetero_airflow.runtime.published_checkpoint import read_published
from hetero_airflow.runtime.session import Checkpoint, CheckpointSession, read_place
from hetero_airflow.runtime.state.loader_position import LoaderPosition
from hetero_airflow.runtime.state.restoring import Rng
from hetero_airflow.runtime.state.sharded import load_distributed as _load_distributed
from hetero_airflow.runtime.state.sharded import save_distributed as _save_distributed
from hetero_airflow.runtime.step_loop import StepLoop
from hetero_airflow.settings import CHECKPOINT_VARIABLE, CONTROL_VARIABLE

__all__ = [
    "Checkpoint",
    "LoaderPosition",
    "Rng",
    "Stopped",
    "is_due",
    "latest",
    "load_distributed",
    "open_published",
    "save",
    "save_distributed",
    "should_stop",
    "steps",
    "wait",
]


def session() -> CheckpointSession:
    """The dealings of this process with its checkpoints; opens no connection yet.

    :raises SettingsError: the place in the environment, or the settings of its store, can't be read
    """
    return _session(os.environ.get(CHECKPOINT_VARIABLE), os.environ.get(CONTROL_VARIABLE))


@lru_cache(maxsize=1)
def _session(place_text: str | None, control: str | None) -> CheckpointSession:
    place = read_place(place_text)
    return CheckpointSession(place, open_store(place), Path(control) if control else None)


def save(
    step: int,
    state: object,
    *,
    metrics: Mapping[str, float] | None = None,
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    wait: bool = False,
    final: bool = False,
) -> None:
    """Keep the state after a step (counted from 0).

    The state is made of JSON values, tensors, arrays, bytes, tuples, and objects with ``state_dict()``; `files` maps
    names to paths. All of it is copied before this returns; it is written and published in the background, after the
    save before. With `wait` it is published on return. `final` says that the work is done and nothing comes after.

    Of several processes only rank 0 saves, and the others return at once. Outside `steps`, a single process that was
    given a notice waits for its save and is `Stopped` by it.

    :raises InvalidCheckpoint: a part of the state that only pickle could keep, a metric that is no finite number, or a
        name that would leave the checkpoint; nothing was saved
    :raises CheckpointError: this save failed, or the one before did in the background
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
    """Keep a state whose tensors are sharded over the ranks (FSDP, DTensor), after a step; all ranks call it.

    `state_dict` is what torch.distributed.checkpoint takes: dicts and lists, of tensors and JSON values. Each rank
    copies and writes its own shards in the background, and rank 0 publishes all of them as one checkpoint.

    :raises InvalidCheckpoint: a part that can't be kept, or ranks that do not share rank 0's temporary folder
    :raises CheckpointError: this save failed, or the one before did in the background
    """
    _save_distributed(session(), step, state_dict, metrics=metrics, wait=wait, final=final)


def load_distributed(state_dict: MutableMapping[str, Any]) -> int | None:
    """Fill a sharded state from the latest checkpoint, whatever the number of ranks that saved it; all ranks call it.

    Tensors are filled in place and the other values are replaced. The step of the checkpoint; None if there is none.

    :raises InvalidCheckpoint: the checkpoint lacks a part of the state
    """
    return _load_distributed(session(), state_dict)


def latest() -> Checkpoint | None:
    """The newest checkpoint of this task that is whole; None before the first, and after the task was cleared.

    The first call begins this run: an earlier one that still lives can't publish from then on. A damaged checkpoint is
    warned of, and the one before it is taken.

    :raises FencedOut: a later run has begun
    :raises CheckpointStoreUnavailable: the store does not answer
    """
    return session().latest()


def open_published(found: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint of another task, as `CheckpointSensor` returned it: that very one, or an error.

    :raises InvalidCheckpoint: it is no longer kept, or it is damaged
    :raises CheckpointStoreUnavailable: the store does not answer
    """
    return read_published(session().place, found)


def steps(
    total: int, every: object = "5m", state: Any = None, metrics: Mapping[str, float] | None = None
) -> Iterator[int]:
    """The steps that are left to do, from the one after the latest checkpoint to `total` - 1.

    `every` is a duration (``"5m"``) or a number of steps (``100``). `state` is an object with ``state_dict()`` and
    ``load_state_dict()``, or a mapping of such: it is restored before the first step, saved by `every`, and saved after
    the last one. `metrics` is a mapping that the body keeps up to date. Without a `state` the body saves, where
    `is_due` says so.

    At a notice the step that runs is finished and saved, and `Stopped` is raised. If it can't be saved, the log says
    so, the checkpoint before stays, and the task stops all the same. A periodic save that fails because the store does
    not answer is logged, and tried again when the next one is due.

    Under torch.distributed every rank has to loop; rank 0 decides and saves.

    :raises RequestError: an argument that can't be used; at once, before the first step
    :raises CheckpointError: a save failed
    """
    return iter(StepLoop(session(), total, every, state, metrics))


def is_due() -> bool:
    """Whether the task should save now: by the loop's `every`, or at a notice. Outside `steps`, only at a notice."""
    loops = session().is_due
    return should_stop() if loops is None else loops()


def should_stop() -> bool:
    """Whether the task was given notice to save and stop. Takes about a microsecond."""
    return session().should_stop()


def wait() -> None:
    """Returns when everything that was saved is published.

    :raises CheckpointError: it could not be
    """
    session().wait()
