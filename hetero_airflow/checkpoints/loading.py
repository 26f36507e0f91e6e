"""From a store to local files: nothing is believed before its digest was compared, and nothing is unpickled."""

from __future__ import annotations

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

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)


def read_index(store: CheckpointStore, path: str) -> Index | None:
    """The index of a place; None if nobody has begun there. One request.

    :raises InvalidCheckpoint: what lies there is no index
    """
    return read_versioned(store, path)[0]


def read_versioned(store: CheckpointStore, path: str) -> tuple[Index | None, str | None]:
    """The index of a place with the version that `CheckpointStore.replace` wants."""
    key = f"{path}/{INDEX}"
    found = store.read(key, at_most=MAX_INDEX_BYTES)
    return (parse_object(Index, key, found.content), found.version) if found else (None, None)


def read_newest_checkpoint(store: CheckpointStore, dag_id: str, task_id: str) -> Newest | None:
    """The checkpoint of a task that was published last, in whatever run; None before the first. One request.

    :raises InvalidCheckpoint: what lies there says something else
    """
    key = newest_key(dag_id, task_id)
    found = store.read(key, at_most=MAX_NEWEST_BYTES)
    return parse_object(Newest, key, found.content) if found else None


def load_latest(store: CheckpointStore, place: CheckpointPlace, into: Path) -> CheckpointEntry | None:
    """Bring the newest checkpoint that is whole into a new folder; None, and no folder, if there is none.

    A damaged one is warned of, and the one before is tried. Only what the place's own epoch has published counts: see
    `CheckpointPlace.epoch`.

    :raises InvalidCheckpoint: the index itself can't be read
    :raises CheckpointStoreUnavailable: the store does not answer; a checkpoint is not taken for damaged then
    :raises FileExistsError: the folder is there already
    """
    damaged: set[str] = set()
    index = read_index(store, place.path)
    while entry := next((entry for entry in reversed(_of_epoch(index, place)) if entry.key not in damaged), None):
        try:
            load_checkpoint(store, place, entry, into)
        except InvalidCheckpoint as error:
            damaged.add(entry.key)
            index = read_index(store, place.path)
            if entry in _of_epoch(index, place):  # else it was retired while we read it
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
    """Bring one checkpoint into a new folder and compare size and digest of every file; its manifest.

    :raises InvalidCheckpoint: something is missing, is not what the manifest says, or would leave the folder; then
        the folder is gone again
    :raises FileExistsError: the folder is there already
    """
    folder = f"{place.path}/{entry.key}"
    found = store.read(f"{folder}/{MANIFEST}", at_most=MAX_MANIFEST_BYTES)
    if found is None:
        raise InvalidCheckpoint(
            f"checkpoint {shorten(entry.key)}", found="no manifest", remedy="Use an earlier checkpoint"
        )
    manifest = decode_manifest(found.content, entry)
    into.mkdir(parents=True)
    try:
        for name in manifest.files:
            _fetch_whole(store, f"{folder}/{name}", manifest, name, into / name)
    except BaseException:
        shutil.rmtree(into)
        raise
    return manifest


def _fetch_whole(store: CheckpointStore, key: str, manifest: Manifest, name: str, target: Path) -> None:
    said = manifest.files[name]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidCheckpoint(
            f"{shorten(name)} of a checkpoint", found="a file where its folder should be", remedy="Use an earlier one"
        ) from error
    for _ in range(2):  # once more: what was hurt on its way is whole in the store
        store.fetch(key, target, at_most=said.size_bytes)
        arrived = measure_file(target)
        if arrived == said:
            return
        target.unlink()
    raise InvalidCheckpoint(
        f"{shorten(name)} of {said.size_bytes} bytes",
        found=f"{arrived.size_bytes} bytes" if arrived.size_bytes != said.size_bytes else "another digest",
        remedy="Use an earlier checkpoint",
    )


def parse_object(model: type[Model], key: str, content: bytes) -> Model:
    """A small object as its model.

    :raises InvalidCheckpoint: it is something else
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidCheckpoint(
            f"{model.__name__.lower()} in {shorten(key, limit=200)}",
            found=shorten(first["msg"], limit=200),
            remedy="Move it away if another program wrote it; nothing was overwritten",
        ) from error
