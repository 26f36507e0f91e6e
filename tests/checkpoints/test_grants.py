"""Who may publish: runs with a signed grant, and no process that only says that it has a great token."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.fencing import GRANT, KEY, record_key
from hetero_airflow.checkpoints.index import INDEX, CheckpointEntry, Index, Newest
from hetero_airflow.checkpoints.loading import load_latest, read_index, read_newest_checkpoint
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import WriteClaim, claim_place, publish
from hetero_airflow.errors import FencedOut, GrantRefused
from hetero_airflow.model.grant import Grant, GrantSigner
from hetero_airflow.testing import a_signer
from tests.checkpoints.conftest import NOW

FORGED = 10**6


@pytest.fixture
def signer() -> GrantSigner:
    return a_signer()


@pytest.fixture
def save(store: CheckpointStore, tmp_path: Path):
    """Publishes a step."""

    def save(claim: WriteClaim, step: int) -> CheckpointEntry:
        folder = tmp_path / f"{claim.token}-{step}"
        folder.mkdir()
        (folder / "state.json").write_text(str(step))
        return publish(store, claim, folder, step=step, metrics={}, now=NOW)

    return save


def grant_of(signer: GrantSigner, place: CheckpointPlace, token: int | None = None) -> Grant:
    token = token or place.token or 0
    return signer.sign(lease=f"ti.{token}", token=token, task=place.path, start_by=0)


def vandalize(store: CheckpointStore, place: CheckpointPlace, **changes: object) -> None:
    """What a process with the store's credentials can write by itself."""
    stored = store.read(f"{place.path}/{INDEX}", at_most=10**6)
    index = read_index(store, place.path) or Index(token=0, epoch=0)
    content = index.model_copy(update=changes).model_dump_json().encode()
    assert store.replace(f"{place.path}/{INDEX}", content, stored.version if stored else None)


def forge(place: CheckpointPlace, key: str, token: int = FORGED) -> tuple[CheckpointPlace, Grant]:
    """A grant with this token, and the installation's or an own key in it; its signature is a stranger's."""
    forged = place.model_copy(update={"token": token})
    grant = grant_of(a_signer(), forged)
    return forged, grant.model_copy(update={"key": key}) if key else grant


def edit(place: CheckpointPlace, grant: Grant, **changes: object) -> tuple[CheckpointPlace, Grant]:
    edited = grant.model_copy(update=changes)
    return place.model_copy(update={"token": edited.token}), edited


Forgery = Callable[[CheckpointPlace, GrantSigner], tuple[CheckpointPlace, Grant | None]]
FORGERIES: dict[str, Forgery] = {
    "own key, great token": lambda place, signer: forge(place, ""),
    "own key, the rightful token": lambda place, signer: forge(place, "", 57),
    "the installation's key, own signature": lambda place, signer: forge(place, signer.public_key),
    "no key": lambda place, signer: forge(place, "not a key"),
    "edited token": lambda place, signer: edit(place, grant_of(signer, place), token=FORGED),
    "edited lease": lambda place, signer: edit(place, grant_of(signer, place), lease="ti.58"),
    "edited time": lambda place, signer: edit(place, grant_of(signer, place), start_by=2**40),
    "truncated": lambda place, signer: edit(
        place, grant := grant_of(signer, place), signature=grant.signature[:-9]
    ),
    "of another lease": lambda place, signer: (place, grant_of(signer, place, 58)),
    "of another task": lambda place, signer: (
        place, grant_of(signer, place.model_copy(update={"path": "dag/other/run/-1"}))
    ),
    "another task's, edited": lambda place, signer: edit(
        place, grant_of(signer, place.model_copy(update={"path": "dag/other/run/-1"})), task=place.path
    ),
    "no grant, great token": lambda place, signer: (place.model_copy(update={"token": FORGED}), None),
    "no grant, the rightful token": lambda place, signer: (place, None),
    "no grant, no token": lambda place, signer: (place.model_copy(update={"token": None}), None),
    "replayed": lambda place, signer: (
        place.model_copy(update={"token": 56}), grant_of(signer, place, 56)
    ),
}  # fmt: skip
"""What a process presents that has no lease of its own → from the place and the signer of the run with token 57."""

RECORDABLE = [name for name in FORGERIES if not name.startswith(("no grant", "replayed"))]
"""What is refused even if the process has written it beside the index."""


@pytest.mark.parametrize(
    ("forgery", "is_recorded"), [(name, False) for name in FORGERIES] + [(name, True) for name in RECORDABLE]
)
def test_no_forged_grant_publishes_and_the_rightful_run_does(
    store, new_place, save, signer, forgery, is_recorded
) -> None:
    """Neither with a new claim, nor with one that was made for it, nor if the task has put it beside the index."""
    record_key(store, signer.public_key)
    place = new_place(token=57)
    rightful = claim_place(store, place, grant_of(signer, place))
    first = save(rightful, 1)
    forged_place, grant = FORGERIES[forgery](place, signer)
    if is_recorded:
        recorded = store.read(f"{place.path}/{GRANT}", at_most=10**5)
        assert store.replace(f"{place.path}/{GRANT}", grant.model_dump_json().encode(), recorded.version)
    made = replace(rightful, place=forged_place, token=forged_place.token or FORGED, grant=grant)
    for attempt in (lambda: save(claim_place(store, forged_place, grant), 99), lambda: save(made, 98)):
        with pytest.raises((GrantRefused, FencedOut)):
            attempt()
    assert read_index(store, place.path) == Index(token=57, epoch=0, entries=(first,))
    second = save(rightful, 2)
    newer = new_place(token=58)
    third = save(claim_place(store, newer, grant_of(signer, newer)), 3)
    assert read_index(store, place.path) == Index(token=58, epoch=0, entries=(first, second, third))


@pytest.mark.parametrize("is_first", [False, True])
def test_keys_of_other_installations_publish_nothing_here(store, new_place, save, signer, is_first) -> None:
    """Neither a former key of this installation, nor the key of another store, nor before the first rightful run."""
    record_key(store, signer.public_key)
    place, other = new_place(token=57), a_signer()
    entries = () if is_first else (save(claim_place(store, place, grant_of(signer, place)), 1),)
    with pytest.raises(GrantRefused, match=rf"found a grant of the key '{other.public_key}', .* remove {KEY} from it"):
        claim_place(store, new_place(token=FORGED), grant_of(other, new_place(token=FORGED)))
    with pytest.raises(GrantRefused, match="another key"):
        record_key(store, other.public_key)
    entry = save(claim_place(store, place, grant_of(signer, place)), 2)
    assert read_index(store, place.path) == Index(token=57, epoch=0, entries=(*entries, entry))


def test_a_store_that_passes_to_another_installation_ends_the_runs_of_the_first(store, new_place, save, signer) -> None:
    """A new database begins with token 1. The first installation's token is greater, and its run still goes on."""
    first, old = a_signer(), new_place(token=5000)
    record_key(store, first.public_key)
    old_run = claim_place(store, old, grant_of(first, old))
    before = save(old_run, 1)
    record_key(store, signer.public_key, replaces=True)
    place = new_place(token=3)
    run = claim_place(store, place, grant_of(signer, place))
    with pytest.raises(GrantRefused, match="found a grant of the key"):
        save(old_run, 2)
    entry = save(run, 2)
    assert before.token == 5000
    assert read_index(store, place.path) == Index(token=3, epoch=0, entries=(entry,))


def test_a_key_is_recorded_once_whoever_comes_first(store, signer) -> None:
    record_key(store, signer.public_key)
    record_key(store, signer.public_key)
    assert store.read(KEY, at_most=1000).content.decode() == signer.public_key


def test_a_run_in_a_store_without_a_key_says_that_it_trusts_every_key(store, new_place, save, signer, caplog) -> None:
    place = new_place(token=57)
    save(claim_place(store, place, grant_of(signer, place)), 1)
    assert f"{place.url} has no key of an installation" in caplog.text
    assert store.read(KEY, at_most=1000) is None, "only a scheduler or a supervisor records it"


def test_a_token_without_a_grant_is_refused_where_runs_have_grants(store, new_place, save, signer) -> None:
    place = new_place(token=57)
    save(claim_place(store, place, grant_of(signer, place)), 1)
    before = read_index(store, place.path)
    with pytest.raises(GrantRefused) as caught:
        claim_place(store, new_place(token=FORGED))
    assert caught.value.asked == f"token {FORGED} for {place.path}"
    assert caught.value.found == "no grant, where the run with token 57 had one"
    assert "as HeteroExecutor set it" in caught.value.remedy
    assert read_index(store, place.path) == before


@pytest.mark.parametrize("kind", ["of another token", "of another task", "changed", "no key"])
def test_a_grant_that_does_not_fit_is_refused_and_changes_nothing(store, new_place, signer, kind) -> None:
    place = new_place(token=FORGED)
    grant = grant_of(signer, place)
    if kind == "of another token":
        grant = grant_of(signer, place, 57)
    elif kind == "of another task":
        grant = grant_of(signer, new_place(token=FORGED, path="dag/other/run/-1"))
    elif kind == "changed":
        grant = grant_of(signer, place, 57).model_copy(update={"token": FORGED})
    else:
        grant = grant.model_copy(update={"key": "not a key"})
    found = {"of another token": "a grant for token 57", "of another task": "of dag/other/run/-1"}
    with pytest.raises(GrantRefused, match=found.get(kind, "signature does not fit")):
        claim_place(store, place, grant)
    assert read_index(store, place.path) is None


def test_a_forged_token_that_was_there_first_does_not_block_the_rightful_run(
    store, new_place, save, signer, tmp_path, caplog
) -> None:
    save(claim_place(store, new_place(token=FORGED)), 99)
    place = new_place(token=57)
    with caplog.at_level(logging.WARNING):
        rightful = claim_place(store, place, grant_of(signer, place))
    assert f"names token {FORGED} in epoch 0, and no scheduler has granted it" in caplog.text
    assert load_latest(store, place, tmp_path / "loaded") is None, "nor does it continue from the forger's state"
    entry = save(rightful, 1)
    assert read_index(store, place.path) == Index(token=57, epoch=0, entries=(entry,))


def test_a_forged_token_does_not_stop_a_run_on_its_way(store, new_place, save, signer) -> None:
    place = new_place(token=57)
    rightful = claim_place(store, place, grant_of(signer, place))
    first = save(rightful, 1)
    vandalize(store, place, token=FORGED, epoch=FORGED)
    second = save(rightful, 2)
    vandalize(store, place, epoch=FORGED)
    third = save(rightful, 3)
    assert read_index(store, place.path) == Index(token=57, epoch=0, entries=(first, second, third))


def test_a_grant_that_a_stranger_signed_does_not_block_the_rightful_run(store, new_place, save, signer) -> None:
    stranger, forged = a_signer(), new_place(token=FORGED)
    place = new_place(token=57)
    rightful = claim_place(store, place, grant_of(signer, place))
    save(claim_place(store, forged, grant_of(stranger, forged)), 99)
    entry = save(rightful, 1)
    assert read_index(store, place.path) == Index(token=57, epoch=0, entries=(entry,))
    newer = new_place(token=58)
    assert claim_place(store, newer, grant_of(signer, newer)).index.entries == (entry,)


def test_a_stale_grant_is_fenced_out_by_the_next_run(store, new_place, save, signer) -> None:
    old, new = new_place(token=57), new_place(token=58, epoch=1)
    stale = claim_place(store, old, grant_of(signer, old))
    claim_place(store, new, grant_of(signer, new))
    with pytest.raises(FencedOut, match=r"with token 57 in epoch 0; found a newer run, with token 58"):
        save(stale, 1)
    with pytest.raises(FencedOut, match="token 58"):
        claim_place(store, old, grant_of(signer, old))
    vandalize(store, new, token=FORGED)
    with pytest.raises(FencedOut, match="token 58"):
        save(stale, 2)


def test_the_grant_of_a_run_that_died_before_it_began_fences_too(store, new_place, signer) -> None:
    """Its process was killed between the two writes of its claim."""
    old, new = new_place(token=57), new_place(token=58)
    claim_place(store, old, grant_of(signer, old))
    claim_place(store, new, grant_of(signer, new))
    vandalize(store, old, token=57)
    with pytest.raises(FencedOut, match="token 58"):
        claim_place(store, old, grant_of(signer, old))


def test_the_same_grant_may_begin_again(store, new_place, save, signer) -> None:
    place = new_place(token=57)
    entry = save(claim_place(store, place, grant_of(signer, place)), 1)
    assert claim_place(store, place, grant_of(signer, place)).index.entries == (entry,)


def test_checkpoints_of_earlier_versions_stay(store, new_place, save, signer, tmp_path) -> None:
    entry = save(claim_place(store, new_place(token=57)), 1)
    place = new_place(token=58)
    claim = claim_place(store, place, grant_of(signer, place))
    assert (claim.index.entries, load_latest(store, place, tmp_path / "loaded")) == ((entry,), entry)


def test_a_new_database_with_new_tokens_does_not_end_old_work(store, new_place, save, signer) -> None:
    """After a reset of Airflow's database, tokens begin at 1, and another key signs them."""
    old = new_place(token=5000)
    save(claim_place(store, old, grant_of(a_signer(), old)), 1)
    place = new_place(token=3)
    entry = save(claim_place(store, place, grant_of(signer, place)), 2)
    assert read_index(store, place.path) == Index(token=3, epoch=0, entries=(entry,))


def test_a_forged_newest_checkpoint_is_replaced(store, new_place, save, signer) -> None:
    place = new_place(token=57)
    claim = claim_place(store, place, grant_of(signer, place))
    first = save(claim, 1)
    newest = store.read(place.newest_key, at_most=10**5)
    forged = Newest(path=place.path, entry=first.model_copy(update={"token": FORGED, "key": "0-1000000-00000000"}))
    assert store.replace(place.newest_key, forged.model_dump_json().encode(), newest.version)
    second = save(claim, 2)
    assert read_newest_checkpoint(store, *place.path.split("/")[:2]) == Newest(path=place.path, entry=second)


def test_rubbish_beside_the_index_is_no_grant(store, new_place, save, signer) -> None:
    place = new_place(token=57)
    assert store.replace(f"{place.path}/grant.json", b"\0rubbish", None)
    save(claim_place(store, place, grant_of(signer, place)), 1)
    assert read_index(store, place.path).token == 57
