import json
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from hetero_airflow.errors import SettingsError
from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.team_shares import TeamShares
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.snapshot_file import read_snapshot, snapshot_text
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker, snapshots

KNOWN = Estimates(
    {("dag", "train"): {"nvidia/a100": 2.0}},
    {("dag", "other"): Interval(1.0, 2.0, 3.0)},
    (1.0, 2.5),
    ((a_pending().request.alternatives[0], 1.0),),
    {"nvidia/a100": 3.0},
    {("dag", "train"): (("dag", "other"), ("dag", "test"))},
    {"dag": {"nvidia/a100": 60.0}},
    EPOCH,
    TeamShares.parse("research=3, research/nlp_*=2 max 4"),
    {("dag", "train"): {"nvidia/a100": 0.25}},
    {"lease-1": EPOCH},
)


def values(estimates: Estimates) -> tuple[object, ...]:
    return tuple(getattr(estimates, name) for name in Estimates.__dataclass_fields__)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=30)
@given(snapshots())
def test_a_saved_snapshot_reads_back_the_same(snapshot):
    saved = read_snapshot(snapshot_text(snapshot, EPOCH))
    assert saved.taken_at == EPOCH
    assert replace(saved.snapshot, estimates=snapshot.estimates) == snapshot
    assert values(saved.snapshot.estimates) == values(snapshot.estimates)


def test_leases_their_holders_and_estimates_are_saved():
    store = MemoryStore()
    store.record(
        [WorkerSeen(a_worker()), RequestSubmitted(a_pending("r1", attained_service_s={"nvidia/k80": 2.0}))], EPOCH
    )
    store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, EPOCH)
    snapshot = replace(store.snapshot(), estimates=KNOWN)
    saved = read_snapshot(snapshot_text(snapshot, EPOCH)).snapshot
    assert (saved.leases, saved.holders, dict(saved.usage)) == (
        snapshot.leases,
        snapshot.holders,
        dict(snapshot.usage),
    )
    assert values(saved.estimates) == values(KNOWN)


TRAIN = {"dag_id": "dag", "task_id": "train"}
SAVED = json.loads(snapshot_text(Snapshot(1, (a_worker(),), pending=(a_pending("r1"),)), EPOCH))
NAIVE = {**SAVED["pending"][0], "submitted_at": "2026-01-01T00:00:00"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pending": SAVED["pending"] * 2}, "'r1' twice at the top"),
        ({"workers": SAVED["workers"] * 2}, "'worker-a' twice at the top"),
        ({"taken_at": "2026-01-01T00:00:00"}, "a time without a zone at taken_at"),
        ({"pending": [NAIVE]}, "a time of 'r1' without a zone at pending.0"),
        (
            {"tasks": [TRAIN | {"speeds": {"nvidia/a100": math.nan}}]},
            "no finite number, nan at tasks.0.speeds.nvidia/a100",
        ),
        (
            {"tasks": [TRAIN | {"speeds": {"nvidia/a100": -1}}]},
            "a number below 0.0, -1 at tasks.0.speeds.nvidia/a100",
        ),
        (
            {"tasks": [TRAIN | {"work": [0, 0, 0]}]},
            "(0.0, 0.0, 0.0), not three finite numbers above 0 in order at tasks.0.work",
        ),
        (
            {"tasks": [TRAIN | {"work": [3, 2, 1]}]},
            "(3.0, 2.0, 1.0), not three finite numbers above 0 in order at tasks.0.work",
        ),
    ],
)
def test_what_no_snapshot_can_say_is_values(changes, found):
    with pytest.raises(SettingsError) as caught:
        read_snapshot(json.dumps(SAVED | changes))
    assert caught.value.found == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no JSON (EOF while parsing a value at line 1 column 0) at the top"),
        ("{}", "no value at schema_version"),
        (
            json.dumps({**json.loads(snapshot_text(MemoryStore().snapshot(), EPOCH)), "schema_version": 9}),
            "another value than 1, 9 at schema_version",
        ),
    ],
)
def test_another_text_is_no_snapshot(text, found):
    with pytest.raises(SettingsError) as caught:
        read_snapshot(text)
    assert (caught.value.asked, caught.value.found) == ("a saved snapshot", found)
