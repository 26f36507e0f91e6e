"""Loads checkpoints into local files. Every digest is compared before use, and nothing is unpickled."""

import logging
import shutil
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.index import INDEX, MAX_INDEX_BYTES, MAX_NEWEST_BYTES, CheckpointEntry, Index, Newest
from hetero_airflow.checkpoints.keys import MANIFEST
from hetero_airflow.checkpoints.manifest import MAX_MANIFEST_BYTES, Manifest, decode_manifest, measure_file
from hetero_airflow.checkpoints.place import CheckpointPlace, newest_key
from hetero_airflow.errors import InvalidCheckpoint, shorten
from hetero_airflow.validation import first_problem

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)


def read_index(store: CheckpointStore, path: str) -> Index | None:
    """The index of a place; None if no run has begun there. One request.

    :raises InvalidCheckpoint: the object there is no index
    """
    return read_versioned(store, path)[0]


def read_versioned(store: CheckpointStore, path: str) -> tuple[Index | None, str | None]:
    """The index of a place, and its version for `CheckpointStore.replace`."""
    key = f"{path}/{INDEX}"
    stored = store.read(key, at_most=MAX_INDEX_BYTES)
    return (parse_object(Index, key, stored.content), stored.version) if stored else (None, None)


def read_newest_checkpoint(store: CheckpointStore, dag_id: str, task_id: str) -> Newest | None:
    """The checkpoint that a task published last, in any run; None before the first. One request.

    :raises InvalidCheckpoint: the object there is something else
    """
    key = newest_key(dag_id, task_id)
    stored = store.read(key, at_most=MAX_NEWEST_BYTES)
    return parse_object(Newest, key, stored.content) if stored else None


def load_latest(store: CheckpointStore, place: CheckpointPlace, into: Path) -> CheckpointEntry | None:
    """Copy the newest undamaged checkpoint into a new folder; None, and no folder, if there is none.

    A damaged checkpoint is logged, and the one before it is tried. Only checkpoints of the place's epoch count: see
    `CheckpointPlace.epoch`.

    :raises InvalidCheckpoint: the index itself can't be read
    :raises CheckpointStoreUnavailable: the store does not answer; then no checkpoint counts as damaged
    :raises FileExistsError: the folder exists already
    """
    damaged: set[str] = set()
    index = read_index(store, place.path)
    while entry := next((entry for entry in reversed(_of_epoch(index, place)) if entry.key not in damaged), None):
        try:
            load_checkpoint(store, place, entry, into)
        except InvalidCheckpoint as error:
            damaged.add(entry.key)
            index = read_index(store, place.path)
            if entry in _of_epoch(index, place):  # else another process retired it meanwhile
                log.warning("Checkpoint %s is damaged, trying the one before: %s", entry.key, error)
        else:
            return entry
    return None


def _of_epoch(index: Index | None, place: CheckpointPlace) -> tuple[CheckpointEntry, ...]:
    if index is None:
        return ()
    epoch = index.epoch if place.epoch is None else place.epoch
    return tuple(entry for entry in index.entries if entry.epoch == epoch)


def load_checkpoint(store: CheckpointStore, place: CheckpointPlace, entry: CheckpointEntry, into: Path) -> Manifest:
    """Copy one checkpoint into a new folder and compare size and digest of every file. Returns its manifest.

    :raises InvalidCheckpoint: something is missing, differs from the manifest, or would leave the folder; the new
        folder is removed
    :raises FileExistsError: the folder exists already
    """
    folder = f"{place.path}/{entry.key}"
    stored = store.read(f"{folder}/{MANIFEST}", at_most=MAX_MANIFEST_BYTES)
    if stored is None:
        raise InvalidCheckpoint(
            f"checkpoint {shorten(entry.key)}", found="no manifest", remedy="Use an earlier checkpoint"
        )
    manifest = decode_manifest(stored.content, entry)
    into.mkdir(parents=True)
    try:
        for name in manifest.files:
            _fetch_whole(store, f"{folder}/{name}", manifest, name, into / name)
    except BaseException:
        shutil.rmtree(into)
        raise
    return manifest


def _fetch_whole(store: CheckpointStore, key: str, manifest: Manifest, name: str, target: Path) -> None:
    expected = manifest.files[name]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidCheckpoint(
            f"{shorten(name)} of a checkpoint", found="a file where its folder should be", remedy="Use an earlier one"
        ) from error
    for _ in range(2):  # once more: bytes that were damaged on their way may be whole in the store
        store.fetch(key, target, at_most=expected.size_bytes)
        arrived = measure_file(target)
        if arrived == expected:
            return
        target.unlink()
    raise InvalidCheckpoint(
        f"{shorten(name)} of {expected.size_bytes} bytes",
        found=f"{arrived.size_bytes} bytes" if arrived.size_bytes != expected.size_bytes else "another digest",
        remedy="Use an earlier checkpoint",
    )


def parse_object(model: type[Model], key: str, content: bytes) -> Model:
    """Parse a small object.

    :raises InvalidCheckpoint: it is something else
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        path, found = first_problem(error)
        raise InvalidCheckpoint(
            f"{model.__name__.lower()} in {shorten(key, limit=200)}",
            found=f"{found} at {path}" if path else found,
            remedy="Move it away if another program wrote it; nothing was overwritten",
        ) from error
