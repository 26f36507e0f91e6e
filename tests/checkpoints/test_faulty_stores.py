"""Object stores that fail as the real ones do, behind a real HTTP proxy."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hetero_airflow.checkpoints import CHECKPOINT_STORES, GROUP, cloud_client
from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.index import CheckpointEntry
from hetero_airflow.checkpoints.loading import load_latest, read_index, read_newest_checkpoint
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import WriteClaim, claim_place, publish
from hetero_airflow.errors import CheckpointStoreUnavailable
from hetero_airflow.registry import load
from tests.checkpoints.azurite_server import KEY
from tests.checkpoints.conftest import NOW, STORES
from tests.checkpoints.fault_proxy import FaultProxy, fault_proxy
from tests.effort import effort, long

KINDS = ["500", "dropped", "answer lost", "cut off"]
SECRETS = ("hunter2", KEY, "PRIVATE KEY")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once: the tests check their number, not the libraries' waits."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0)
    monkeypatch.setattr(cloud_client, "FIRST_WAIT", timedelta(milliseconds=1))


@pytest.fixture(params=[name for name in STORES if name != "file"])
def of_a_server(request: pytest.FixtureRequest) -> CheckpointPlace:
    """A place in each object store, without the proxy."""
    return request.getfixturevalue(f"{request.param}_place")(token=1)  # type: ignore[no-any-return]


@pytest.fixture
def proxy(of_a_server: CheckpointPlace) -> Iterator[FaultProxy]:
    """A proxy before the store."""
    with fault_proxy(str(of_a_server.endpoint)) as proxy:
        yield proxy


@pytest.fixture
def place(of_a_server: CheckpointPlace, proxy: FaultProxy) -> CheckpointPlace:
    """In the store, through the proxy."""
    endpoint = proxy.url + urlsplit(str(of_a_server.endpoint)).path
    return of_a_server.model_copy(update={"endpoint": endpoint, "endpoints": (endpoint,)})


@pytest.fixture
def store(place: CheckpointPlace) -> CheckpointStore:
    return open_store(place)


def save(store: CheckpointStore, holder: WriteClaim, tmp_path: Path, step: int, size: int = 1000) -> CheckpointEntry:
    folder = tmp_path / f"staged{step}"
    folder.mkdir(exist_ok=True)
    (folder / "tensors").write_bytes(bytes(size) + str(step).encode())
    (folder / "state.json").write_text(f'{{"step": {step}}}')
    return publish(store, holder, folder, step=step, metrics={}, now=NOW)


@long
@pytest.mark.parametrize("offset", range(effort(1, 3)))
@pytest.mark.parametrize("kind", [*KINDS, *effort([], ["503", "slow"])])
def test_saves_and_loads_go_through_if_every_third_request_fails(
    store, place, proxy: FaultProxy, tmp_path, kind: str, offset: int
) -> None:
    hit: list[int] = []

    def fault(method: str, path: str, number: int) -> str | None:
        if number % 3 != offset:
            return None
        hit.append(number)
        return kind

    proxy.fault = fault
    holder = claim_place(store, place)
    entries = [save(store, holder, tmp_path, step) for step in (1, 2)]
    assert load_latest(store, place, tmp_path / "loaded") == entries[1]
    assert (tmp_path / "loaded" / "tensors").read_bytes() == bytes(1000) + b"2"
    assert read_index(store, place.path).entries == tuple(entries)
    assert read_newest_checkpoint(store, "dag", "task").entry == entries[1]
    assert len(hit) > 5


@pytest.mark.system
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_file_goes_through_in_parts(store, place, proxy: FaultProxy, tmp_path, kind: str) -> None:
    seen: set[str] = set()

    def fault(method: str, path: str, number: int) -> str | None:  # the first time of each request
        is_new = path not in seen
        seen.add(path)
        return kind if is_new and method in ("PUT", "POST") else None

    proxy.fault = fault
    entry = save(store, claim_place(store, place), tmp_path, 1, size=20 << 20)
    assert len([path for path in seen if "partNumber=" in path or "comp=block&" in path]) == 3
    proxy.fault = lambda method, path, number: "cut off" if number % 4 == 0 else None
    assert load_latest(store, place, tmp_path / "loaded") == entry
    assert (tmp_path / "loaded" / "tensors").read_bytes() == bytes(20 << 20) + b"1"


@long
@pytest.mark.parametrize("kind", ["500", "cut off", *effort([], ["503", "dropped"])])
def test_an_unavailable_store_is_reported_and_nothing_is_lost(
    store, place, proxy: FaultProxy, tmp_path, kind: str
) -> None:
    holder = claim_place(store, place)
    first = save(store, holder, tmp_path, 1)
    proxy.fault = lambda method, path, number: kind if method != "PUT" or kind != "cut off" else "dropped"
    for attempt in (
        lambda: save(store, holder, tmp_path, 2),
        lambda: read_index(store, place.path),
        lambda: load_latest(store, place, tmp_path / "loaded"),
        lambda: store.fetch(f"{place.path}/{first.key}/tensors", tmp_path / "target", at_most=10_000),
        lambda: list(store.sweep(place.path, lambda name, age_s: True)),
    ):
        with pytest.raises(CheckpointStoreUnavailable) as caught:
            attempt()
        assert not [secret for secret in SECRETS if secret in f"{caught.value} {caught.value.__cause__}"]
    assert not (tmp_path / "loaded").exists()
    assert not (tmp_path / "target").exists()
    proxy.fault = lambda method, path, number: None
    assert load_latest(store, place, tmp_path / "loaded") == first
    assert save(store, holder, tmp_path, 3) == read_index(store, place.path).entries[-1]


@long
def test_a_store_that_fails_during_a_save_keeps_earlier_checkpoints(store, place, proxy: FaultProxy, tmp_path) -> None:
    holder = claim_place(store, place)
    first = save(store, holder, tmp_path, 1)
    before = proxy.number
    save(store, holder, tmp_path, 2)
    for last in range(0, proxy.number - before, effort(3, 1)):
        start = proxy.number
        proxy.fault = lambda method, path, number, limit=start + last: "503" if number > limit else None
        with contextlib.suppress(CheckpointStoreUnavailable):
            save(store, holder, tmp_path, 3 + last)
        proxy.fault = lambda method, path, number: None
        into = tmp_path / f"loaded{last}"
        loaded = load_latest(store, place, into)
        assert loaded == read_index(store, place.path).entries[-1]
        assert loaded.step >= first.step
        assert (into / "tensors").read_bytes() == bytes(1000) + str(loaded.step).encode()


def test_a_caller_that_asks_again_anyway_sends_one_request(place, proxy: FaultProxy) -> None:
    of_scheme = load(GROUP, CHECKPOINT_STORES, place.url.partition(":")[0])
    proxy.fault = lambda method, path, number: "cut off"
    store = of_scheme(place, None, attempts=1)
    with pytest.raises(CheckpointStoreUnavailable):
        store.read("dag/index.json", at_most=100)
    assert proxy.number == 1


@pytest.mark.parametrize("content", [b"{}", b'{"token": 9, "epoch": 0, "entries": []}'])
def test_a_store_that_ignores_conditions_is_refused_and_nothing_is_overwritten(
    place, proxy: FaultProxy, content: bytes
) -> None:
    if place.url.startswith("az"):
        pytest.skip("Azure's signature covers the conditions, so no proxy can take them away")
    honest = open_store(place)
    honest.replace(f"{place.path}/index.json", content, None)
    proxy.fault = lambda method, path, number: "ignored"
    store = open_store(place)
    with pytest.raises(CheckpointStoreUnavailable, match="does not honour"):
        store.replace(f"{place.path}/index.json", b"mine", None)
    assert honest.read(f"{place.path}/index.json", at_most=100).content == content


@pytest.mark.parametrize("size", [10, (9 << 20) + 1])
@pytest.mark.parametrize("kind", ["500", "404", "dropped"])
def test_an_old_object_of_the_same_size_is_never_taken_for_a_file_that_was_not_written(
    store, proxy: FaultProxy, tmp_path, kind: str, size: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"o" * size)
    old = store.upload("data/file", source)
    source.write_bytes(b"n" * size)
    proxy.fault = lambda method, path, number: kind if method in ("PUT", "POST") else None
    with pytest.raises(CheckpointStoreUnavailable):
        store.upload("data/file", source)
    proxy.fault = lambda method, path, number: None
    assert store.version("data/file") == old
    new = store.upload("data/file", source)
    assert store.read_range(new, 0, size) == b"n" * size
