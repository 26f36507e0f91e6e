"""Publishes checkpoints: the files, then the manifest, and last the index by compare-and-swap.

The swap publishes and fences in one step. A run puts its greater token into the index when it begins. From then on
every swap of an earlier run fails, however late its process comes back. A lease check before the write would leave a
gap. After Kleppmann, "How to do distributed locking" (2016); here the data's store compares the tokens.
"""

import hashlib
import logging
import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.fencing import ATTEMPTS, admit_run, pass_fence
from hetero_airflow.checkpoints.index import INDEX, MAX_INDEX_BYTES, MAX_NEWEST_BYTES, CheckpointEntry, Index, Newest
from hetero_airflow.checkpoints.keys import MANIFEST, folder_name
from hetero_airflow.checkpoints.loading import parse_object, read_index, read_versioned
from hetero_airflow.checkpoints.manifest import Manifest, check_metrics, describe_files, encode_manifest
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.retention import is_garbage, parse_keep_best, retained_entries
from hetero_airflow.errors import CheckpointError, CheckpointStoreUnavailable, InvalidCheckpoint
from hetero_airflow.model.grant import Grant

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """The right to publish in a place until a run with a greater token begins there."""

    place: CheckpointPlace
    token: int
    """The place's, or a new one if it has none."""
    epoch: int
    """The place's, or the index's if it has none."""
    index: Index
    """As it was at the claim."""
    grant: Grant | None = None
    """What the scheduler signed for the run; None for a run without a lease, or of a scheduler that signs nothing."""


def claim_place(store: CheckpointStore, place: CheckpointPlace, grant: Grant | None = None) -> WriteClaim:
    """Begin to publish in a place. Runs with a smaller token can't from now on. The same run may call it again.

    :raises FencedOut: a run with a greater token or of a later epoch has begun there already
    :raises GrantRefused: no scheduler has granted the place's token; see `admit_run`
    :raises SettingsError: a `keep_best` that can't be read
    """
    if place.keep_best is not None:
        parse_keep_best(place.keep_best)
    admit_run(store, place, grant)

    def begin(index: Index | None) -> Index:
        if index is None:
            return Index(token=1 if place.token is None else place.token, epoch=place.epoch or 0)
        token = index.token + 1 if place.token is None else place.token
        index = pass_fence(store, place, index, token, place.epoch, grant)
        return index.model_copy(update={"token": token} | ({} if place.epoch is None else {"epoch": place.epoch}))

    index = _swap_index(store, place, begin)
    if index.current:
        _announce_newest(store, place, index.current[-1])  # its writer may have been killed before it did
    return WriteClaim(place, index.token, index.epoch, index, grant)


def publish(
    store: CheckpointStore,
    claim: WriteClaim,
    folder: Path,
    *,
    step: int,
    metrics: Mapping[str, float],
    now: datetime,
    is_final: bool = False,
) -> CheckpointEntry:
    """Store the files of a local folder as the checkpoint of a step. Blocks. Returns the entry in the index.

    If it fails, or the process dies, earlier checkpoints stay untouched and a later call removes the remains. After the
    publication, checkpoints that the place's retention does not keep are deleted; a failure of that is only logged.

    :raises FencedOut: another run has begun, and nothing was published
    :raises InvalidCheckpoint: a file or metric that can't be stored
    :raises CheckpointStoreUnavailable: the store can't take it now
    """
    place = claim.place
    manifest = Manifest(step=step, metrics=check_metrics(metrics), files=describe_files(folder))
    content = encode_manifest(manifest)
    index = read_index(store, place.path)
    if index is not None:
        pass_fence(
            store, place, index, claim.token, claim.epoch, claim.grant
        )  # early, before the upload; the swap is what counts
    key = folder_name(step, claim.token, secrets.token_hex(4))
    for name in manifest.files:
        store.put(f"{place.path}/{key}/{name}", folder / name)
    with tempfile.NamedTemporaryFile(prefix="manifest-") as file:
        file.write(content)
        file.flush()
        store.put(f"{place.path}/{key}/{MANIFEST}", Path(file.name))
    entry = CheckpointEntry(
        step=step,
        key=key,
        digest=hashlib.sha256(content).hexdigest(),
        size_bytes=manifest.size_bytes,
        metrics=manifest.metrics,
        published_at=now,
        token=claim.token,
        epoch=claim.epoch,
        is_final=is_final,
    )
    return _add_entry(store, claim, entry)


def _add_entry(store: CheckpointStore, claim: WriteClaim, entry: CheckpointEntry) -> CheckpointEntry:
    place = claim.place
    retired: set[str] = set()

    def add(index: Index | None) -> Index:
        index = index or Index(token=claim.token, epoch=claim.epoch)
        index = pass_fence(store, place, index, claim.token, claim.epoch, claim.grant)
        if any(listed.key == entry.key for listed in index.entries):
            return index  # an earlier swap succeeded, but its answer was lost
        last = max((listed.published_at for listed in index.current), default=entry.published_at)
        dated = entry.model_copy(update={"published_at": max(last, entry.published_at)})
        entries = retained_entries([*index.current, dated], place)
        retired.update({listed.key for listed in index.entries} - {listed.key for listed in entries})
        return index.model_copy(update={"entries": entries})

    index = _swap_index(store, place, add)
    published = next(listed for listed in index.entries if listed.key == entry.key)
    _announce_newest(store, place, published)
    try:
        for name in store.sweep(
            place.path,
            lambda folder, age_s: is_garbage(folder, age_s, index=index, token=claim.token, retired=retired),
        ):
            log.debug("Removed checkpoint %s of %s", name, place.path)
    except CheckpointError as error:
        log.warning("Old checkpoints of %s are not all removed; the next save tries again: %s", place.path, error)
    return published


def _swap_index(store: CheckpointStore, place: CheckpointPlace, change: Callable[[Index | None], Index]) -> Index:
    """Change the newest index, again and again until no other writer interferes. Returns the new index."""
    for _ in range(ATTEMPTS):
        index, version = read_versioned(store, place.path)
        changed = change(index)
        if changed == index:
            return changed
        content = changed.model_dump_json().encode()
        if len(content) > MAX_INDEX_BYTES:
            raise InvalidCheckpoint(
                f"an index of {len(changed.entries)} checkpoints",
                found=f"{len(content)} bytes",
                remedy="Keep fewer: raise keep_every",
            )
        if store.replace(f"{place.path}/{INDEX}", content, version) is not None:
            return changed
    raise CheckpointStoreUnavailable(
        f"to write the index of {place.path}",
        found=f"another writer first, {ATTEMPTS} times",
        remedy="Check how many processes save there; one task instance has one writer",
    )


def _announce_newest(store: CheckpointStore, place: CheckpointPlace, entry: CheckpointEntry) -> None:
    """Record an entry as the task's newest, unless a later one is recorded; a failure is only logged."""
    key = place.newest_key
    if key is None:
        return
    content = Newest(path=place.path, entry=entry).model_dump_json().encode()
    try:
        for _ in range(ATTEMPTS):
            stored = store.read(key, at_most=MAX_NEWEST_BYTES)
            newest = parse_object(Newest, key, stored.content) if stored else None
            if newest and not _is_later(place, entry, newest) and _is_published(store, place, newest):
                return
            if store.replace(key, content, stored.version if stored else None) is not None:
                return
        log.warning("%s does not name checkpoint %s: other writers were always first", key, entry.key)
    except CheckpointError as error:
        log.warning("%s does not name checkpoint %s: %s", key, entry.key, error)


def _is_published(store: CheckpointStore, place: CheckpointPlace, newest: Newest) -> bool:
    """Whether the index of this place names the entry, if it is of this place; any process could have written it."""
    index = read_index(store, place.path) if newest.path == place.path else None
    return index is None or any(entry.key == newest.entry.key for entry in index.entries)


def _is_later(place: CheckpointPlace, entry: CheckpointEntry, newest: Newest) -> bool:
    if newest.path == place.path and entry.token != newest.entry.token:
        return entry.token > newest.entry.token
    return entry.published_at >= newest.entry.published_at and entry.key != newest.entry.key
