"""Fences earlier runs of a task out of its place: a run with a greater token begins, and the others can't publish.

The index holds the greatest token. A process of the same user could write any number there, so a number alone can't be
trusted: it would end the rightful work for ever. A run with a signed grant puts it beside the index before it begins.
If the index names a greater token than its own, only a grant that the same key has signed fences it out. Otherwise the
run takes the place back. Runs without a grant, of earlier versions or without a lease, go by the index alone.

Anyone can make a key and sign with it. So a store has the key of its installation, one object for all places. The
scheduler or a task's supervisor records it before tasks begin, see `configured.record_installation_key`,
and what a task uses to publish never writes it. Rejected: to trust the first grant that arrives, which may be forged; a
key in the task's environment, which the task can change.
"""

import logging

from pydantic import ValidationError

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore, StoredObject
from hetero_airflow.checkpoints.index import Index
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, FencedOut, GrantRefused, InvalidCheckpoint, shorten
from hetero_airflow.model.grant import Grant

log = logging.getLogger(__name__)

GRANT = "grant.json"
"""Name of the newest grant within a place. Earlier versions do not read it."""

KEY = "grant-key.txt"
"""Name of the installation's key within a store. No place has this name, see `checkpoint_path`."""

MAX_GRANT_BYTES = 4096

_HAND_OVER = f"remove {KEY} from it and run `airflow hetero config --check`"

ATTEMPTS = 20
"""An attempt fails only if another writer succeeded, and a place has one or two writers."""


def record_key(store: CheckpointStore, key: str, *, replaces: bool = False) -> None:
    """Record an installation's key in a store. From then on, only grants that it has signed count there.

    :param replaces: replace another key
    :raises GrantRefused: the store has another key
    """
    stored = store.read(KEY, at_most=MAX_GRANT_BYTES)
    if stored is None or (replaces and _key_of(stored) != key):
        store.replace(KEY, key.encode(), stored.version if stored else None)
        stored = store.read(KEY, at_most=MAX_GRANT_BYTES)  # another process may have been first
    if stored is not None and _key_of(stored) != key:
        raise GrantRefused(
            f"to record the key {key!r} of this installation",
            found=f"another key in the store, {shorten(_key_of(stored))}",
            remedy=f"Give each installation a store of its own. If this one is to have the store, {_HAND_OVER}",
        )


def admit_run(store: CheckpointStore, place: CheckpointPlace, grant: Grant | None) -> None:
    """See that a run may begin in a place, and record its grant there. The same run may call it again.

    :raises GrantRefused: the installation has not granted the place's token, or has granted others there
    :raises FencedOut: a later run has recorded its grant
    """
    is_known = _check_publisher(store, place, place.token, grant)
    if grant is None:
        return
    if not is_known:
        log.warning(
            "The store %s has no key of an installation. So each key counts there, and a forged grant can publish. Run "
            "`airflow hetero config --check` where checkpoint_url names this store.",
            place.url,
        )
    for _ in range(ATTEMPTS):
        recorded, version = _read_grant(store, place)
        if recorded is not None and _is_signed(recorded, place, grant.key):
            if recorded.token > grant.token:
                raise _fenced_out(place, grant.token, place.epoch, f"token {recorded.token}")
            if recorded.token == grant.token:
                return
        if store.replace(_grant_key(place), grant.model_dump_json().encode(), version) is not None:
            return
    raise CheckpointStoreUnavailable(
        f"to write the grant of {place.path}",
        found=f"another writer first, {ATTEMPTS} times",
        remedy="Check how many processes begin there; one task instance has one writer",
    )


def pass_fence(
    store: CheckpointStore, place: CheckpointPlace, index: Index, token: int, epoch: int | None, grant: Grant | None
) -> Index:
    """The index that this run may change. Entries that no run could have published there so far are left out.

    Their files stay, for a person to look at.

    :param epoch: None: the index's
    :raises FencedOut: a later run has begun
    :raises GrantRefused: see `admit_run`
    """
    is_newest = token >= index.token and (epoch is None or epoch >= index.epoch)
    if grant is None and not is_newest:
        raise _fenced_out(place, token, epoch, f"token {index.token} in epoch {index.epoch}")
    _check_publisher(store, place, token, grant)
    if grant is None or is_newest:
        return index
    recorded, _ = _read_grant(store, place)
    if recorded is not None and recorded.token > token and _is_signed(recorded, place, grant.key):
        raise _fenced_out(place, token, epoch, f"token {recorded.token}")
    entries = [entry for entry in index.entries if entry.token <= token and (epoch is None or entry.epoch <= epoch)]
    log.warning(
        "The index of %s names token %d in epoch %d, and no scheduler has granted it. This run, with token %d, takes "
        "the place back and leaves out %d checkpoints. Look for the process that wrote it.",
        place.path,
        index.token,
        index.epoch,
        token,
        len(index.entries) - len(entries),
    )
    last_epoch = max((entry.epoch for entry in entries), default=0)
    return Index(token=token, epoch=last_epoch if epoch is None else epoch, entries=tuple(entries))


def _check_publisher(store: CheckpointStore, place: CheckpointPlace, token: int | None, grant: Grant | None) -> bool:
    """See that a process may publish with a token; returns whether the store has the key of its installation.

    Without that key, a grant counts that fits its own key.

    :raises GrantRefused: it may not
    """
    stored = store.read(KEY, at_most=MAX_GRANT_BYTES)
    key = None if stored is None else _key_of(stored)
    if grant is not None:
        if key is not None and key != grant.key:
            found = f"a grant of the key {shorten(grant.key)}, where the store has the key {shorten(key)}"
            raise _refused(place, token, found, f". If another installation is to have the store, {_HAND_OVER}")
        grant.check(token=token, task=place.path, key=grant.key)
        return key is not None
    recorded, _ = _read_grant(store, place)
    if recorded is not None and (place.token is not None if key is None else _is_signed(recorded, place, key)):
        raise _refused(place, token, f"no grant, where the run with token {recorded.token} had one")
    if key is not None and place.token is not None:
        raise _refused(place, token, "no grant, in the store of an installation that signs them")
    return key is not None


def _key_of(stored: StoredObject) -> str:
    return stored.content.decode(errors="replace").strip()


def _read_grant(store: CheckpointStore, place: CheckpointPlace) -> tuple[Grant | None, str | None]:
    """The recorded grant, and the version of its object. What is no grant counts as none."""
    try:
        stored = store.read(_grant_key(place), at_most=MAX_GRANT_BYTES)
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(
            f"the grant of {place.path}", found=str(error), remedy="Another program wrote there: remove the object"
        ) from error
    if stored is None:
        return None, None
    try:
        return Grant.model_validate_json(stored.content), stored.version
    except ValidationError:
        return None, stored.version


def _is_signed(recorded: Grant, place: CheckpointPlace, key: str) -> bool:
    try:
        recorded.check(token=recorded.token, task=place.path, key=key)
    except GrantRefused:
        return False
    return True


def _grant_key(place: CheckpointPlace) -> str:
    return f"{place.path}/{GRANT}"


def _refused(place: CheckpointPlace, token: int | None, found: str, more: str = "") -> GrantRefused:
    remedy = "Leave the lease in the environment as HeteroExecutor set it, and run the task through Airflow"
    asked = "a run without a token" if token is None else f"token {token}"
    return GrantRefused(f"{asked} for {place.path}", found=found, remedy=remedy + more)


def _fenced_out(place: CheckpointPlace, token: int, epoch: int | None, newest: str) -> FencedOut:
    own_token = f"token {token}" + ("" if epoch is None else f" in epoch {epoch}")
    return FencedOut(
        f"to publish a checkpoint of {place.path} with {own_token}",
        found=f"a newer run, with {newest}",
        remedy="End this process: it lost its lease or its task was cleared, and the newer run continues",
    )
