"""The checkpoint of another task, as `CheckpointSensor` has found it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_airflow.checkpoints.loading import load_checkpoint, read_index
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import InvalidCheckpoint, shorten
from hetero_airflow.runtime.scratch_folder import ScratchFolder
from hetero_airflow.runtime.session import Checkpoint


def read_published(own: CheckpointPlace, found: Mapping[str, Any]) -> Checkpoint:
    """The very checkpoint that was found; see `checkpoint.open_published`.

    :param own: the place of this task: what it may open, its endpoint and credentials, holds for the other's too
    """
    try:
        url, path, key, digest = (str(found[name]) for name in ("url", "path", "key", "digest"))
    except (KeyError, TypeError):
        raise InvalidCheckpoint(
            f"the checkpoint {shorten(found)}", found="no url, path, key and digest", remedy="Give what the sensor gave"
        ) from None
    place = own.model_copy(update={"url": url, "path": path})
    store = open_store(place)
    index = read_index(store, path)
    entries = () if index is None else index.entries
    entry = next((entry for entry in entries if (entry.key, entry.digest) == (key, digest)), None)
    if entry is None:
        raise InvalidCheckpoint(
            f"checkpoint {shorten(key)} of {shorten(path, 200)}",
            found=f"{len(entries)} others there: it was retired, or its task began anew",
            remedy='Let that task keep more of them: checkpoint={"keep_last": 20}',
        )
    scratch = ScratchFolder()
    folder = scratch.path()
    load_checkpoint(store, place, entry, folder)
    return Checkpoint(entry, folder, scratch)
