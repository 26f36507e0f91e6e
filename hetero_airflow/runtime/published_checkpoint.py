"""The checkpoint of another task that `CheckpointSensor` found."""

from collections.abc import Mapping
from typing import Any

from hetero_airflow.checkpoints.loading import load_checkpoint, read_index
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import InvalidCheckpoint, shorten
from hetero_airflow.runtime.checkpoint_session import Checkpoint
from hetero_airflow.runtime.scratch_folder import ScratchFolder


def read_published(own_place: CheckpointPlace, found: Mapping[str, Any]) -> Checkpoint:
    """Load the checkpoint that the sensor found; see `checkpoint.open_published`.

    :param own_place: the place of this task, whose endpoint and credentials are used for the other task's place too
    """
    try:
        url, path, key, digest = (str(found[name]) for name in ("url", "path", "key", "digest"))
    except (KeyError, TypeError):
        raise InvalidCheckpoint(
            f"the checkpoint {shorten(found)}",
            found="no url, path, key and digest",
            remedy="Pass the value that the sensor returned",
        ) from None
    place = own_place.model_copy(update={"url": url, "path": path})
    store = open_store(place)
    index = read_index(store, path)
    entries = () if index is None else index.entries
    entry = next((entry for entry in entries if (entry.key, entry.digest) == (key, digest)), None)
    if entry is None:
        raise InvalidCheckpoint(
            f"checkpoint {shorten(key)} of {shorten(path, 200)}",
            found=f"{len(entries)} other checkpoints: it was deleted, or its task was cleared",
            remedy='Let that task keep more checkpoints: checkpoint={"keep_last": 20}',
        )
    scratch = ScratchFolder()
    folder = scratch.path()
    load_checkpoint(store, place, entry, folder)
    return Checkpoint(entry, folder, scratch)
