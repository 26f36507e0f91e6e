import gzip
import math
from datetime import datetime, timedelta

import pytest

from hetero_airflow.checkpoints.place import checkpoint_path
from hetero_airflow.contract.progress import Progress, ProgressPhase
from hetero_airflow.contract.state_keys import PROGRESS, LeaseProgress
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Account, AlternativeAccount, CandidateAccount, Plan, Reason, ReasonCode, Wait
from hetero_airflow.model.run import TimeShares, Transition
from hetero_airflow.store.sql.speeds import LeaseSpeed
from hetero_airflow.store.store import RequestSubmitted, TransitionsNoted, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_device, a_pending, a_place, a_speed, a_worker
from hetero_airflow.web.page import page_routes, usage_view
from hetero_airflow.web.page.page_routes import MAX_ORDER_BYTES

LATER = EPOCH + timedelta(hours=1)
HOSTILE = "<script>alert(1)</script>'\"; ü 🤖"
VIEWS = ["summary", "map", "devices", "queue", "timeline", "worker?id=worker-a"]
TASK = {"run_id": "run", "task_id": "fit"}


@pytest.fixture(autouse=True)
def fleet(store):
    """One task holds a GPU, one of a DAG that nobody may read holds another, one waits behind both."""
    reading = Telemetry(device_id="GPU-0", utilization=0.01, power_w=70.0, memory_free_bytes=2**30)
    workers = [
        WorkerSeen(a_worker("worker-a", labels={"hetero/site": "east"}), (reading,)),
        WorkerSeen(a_worker("worker-b", devices=(a_device("GPU-9", simulated=True),))),
    ]
    ids = {name: f"01a1fa1b-42d5-78df-9288-5b4d2de1f4f{n}" for n, name in enumerate(("fit", "secret", "waits"))}
    requests = [
        a_pending(ids["fit"], task_id="fit"),
        a_pending(ids["secret"], dag_id="hidden", task_id="secret"),
        a_pending(ids["waits"], "a100:2", task_id="waits", at_s=5),
    ]
    store.record([*workers, *map(RequestSubmitted, requests)], EPOCH)
    places = (a_place(ids["fit"], **{"GPU-0": 1000}), a_place(ids["secret"], **{"GPU-1": 1000}))
    reason = Reason(ReasonCode.BUSY, "2 × a100", f"{ids['secret']} and {ids['fit']} hold them")
    account = Account("fifo", "waits", (AlternativeAccount("2 × a100", 2, ((2, reason),)),))
    store.commit(Plan((*places, Wait(ids["waits"], 1, reason, account))), EPOCH, LATER)
    return ids


def test_the_summary_and_the_map_count_states(show):
    summary, shown, filtered = map(show, ("summary", "map", "map?site=east"))
    for counted in (summary, shown):
        assert (counted["workers"], counted["devices"]) == (2, 4)
        assert counted["states"] == {"free": 2, "idle": 1, "leased": 1}
    assert (filtered["workers"], filtered["states"]) == (1, {"free": 1, "idle": 1, "leased": 1})
    groups = {
        tile["worker"]: [(g["state"], g["simulated"], g["devices"]) for g in tile["groups"]] for tile in shown["tiles"]
    }
    assert groups == {
        "worker-a": [("free", False, 1), ("idle", False, 1), ("leased", False, 1)],
        "worker-b": [("free", True, 1)],
    }
    assert (summary["choices"]["site"], summary["choices"]["kind"]) == (["east"], ["cpu", "gpu"])


@pytest.mark.parametrize(
    ("query", "devices"),
    [
        ("search=worker-B", ["GPU-9"]),
        ("search=gpu-0", ["GPU-0"]),
        ("kind=cpu", ["cpu"]),
        ("site=east&kind=gpu", ["GPU-0", "GPU-1"]),
        ("label=hetero/site", ["cpu", "GPU-0", "GPU-1"]),
        ("label=hetero/site=west", []),
        ("state=idle", ["GPU-0"]),
        ("search=((", []),
        ("search=%3Cscript%3E", []),
        ("offset=3", ["GPU-9"]),
        ("offset=1&limit=1", ["GPU-0"]),
        ("offset=1000", []),
    ],
)
def test_a_filter_is_a_text_and_no_pattern(show, query, devices):
    assert [row["device"] for row in show(f"devices?{query}")["devices"]] == devices


def test_a_device_shows_its_readings_and_only_the_names_that_the_reader_may_see(show):
    rows = {row["device"]: row for row in show("devices")["devices"]}
    assert rows["GPU-0"]["holders"] == [{"dag_id": "dag", "run_id": "run", "task_id": "fit", "map_index": -1}]
    assert rows["GPU-1"]["holders"] == [None]
    assert (rows["GPU-0"]["power_w"], rows["GPU-0"]["utilization"], rows["GPU-1"]["power_w"]) == (70.0, 0.01, None)


def test_memory_is_known_the_hosts_or_unknown(show, store):
    devices = (a_device(), a_device("GPU-1", "gb10", index=1), a_device("GPU-2", "a40", None, index=2))
    store.record([WorkerSeen(a_worker("worker-m", devices))], EPOCH)
    rows = [row for row in show("devices")["devices"] if row["worker"] == "worker-m"]
    assert [(row["memory_bytes"], row["is_host_memory"]) for row in rows] == [
        (40 << 30, False),
        (40 << 30, True),
        (None, False),
    ]


def test_the_queue_names_no_task_of_a_hidden_dag(show):
    shown = show("queue")
    (row,) = shown["rows"]
    assert (shown["total"], shown["hidden"], row["position"], row["asked"]) == (1, 0, 1, ["2 × nvidia/a100"])
    assert row["reason"] == "busy: asked 2 × a100, found a task of another DAG and dag.fit (run) hold them"
    assert shown["wanted"]


def test_the_placement_of_a_waiting_task_says_who_is_ahead_and_who_holds_what_it_needs(show):
    shown = show("placement/dag", params=TASK | {"task_id": "waits"})
    assert (shown["state"], shown["position"], shown["reason_code"]) == ("waiting", 1, "busy")
    assert "secret" not in str(shown)
    assert [(row["task"] and row["task"]["task_id"], row["devices"]) for row in shown["holders"]] == [
        ("fit", ["GPU-0"]),
        (None, ["GPU-1"]),
    ]
    assert shown["alternatives"][0]["ruled_out"][0]["workers"] == 2
    assert (shown["ahead"], shown["ahead_hidden"]) == ([], 0)


def test_the_tasks_ahead_are_those_of_the_last_cycle(show, store, fleet):
    """Not those with an earlier submission: the policy decides on the order."""
    store.record([RequestSubmitted(a_pending("later", task_id="later", at_s=50))], EPOCH)
    store.record([RequestSubmitted(a_pending("hidden", dag_id="hidden", task_id="hidden", at_s=60))], EPOCH)
    reason, account = Reason(ReasonCode.BUSY, "2 × a100", "0 free"), Account("assignment", "waits")
    order = ("later", "hidden", fleet["waits"])
    store.commit(Plan(tuple(Wait(id_, place, reason, account) for place, id_ in enumerate(order, 1))), LATER, LATER)
    last, first = (show("placement/dag", params=TASK | {"task_id": name}) for name in ("waits", "later"))
    assert ([task["task_id"] for task in last["ahead"]], last["ahead_hidden"]) == (["later"], 1)
    assert (first["position"], first["ahead"], first["ahead_hidden"]) == (1, [], 0)


def test_the_profile_of_a_task_can_be_downloaded(ask, store, fleet, monkeypatch, tmp_path):
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", tmp_path.as_uri())
    (lease,) = [lease for lease in store.snapshot().leases if lease.request_id == fleet["fit"]]
    folder = tmp_path / checkpoint_path("dag", TASK["task_id"], TASK["run_id"], -1)
    folder.mkdir(parents=True)
    (folder / "profile-1-0badcafe.json.gz").write_bytes(b"trace")
    (tmp_path / "secret").write_text("of another task")

    def asked(key):
        progress = Progress(step=20, at=EPOCH, profile=key)
        report = LeaseProgress(lease_id=lease.id, progress=progress, reported_at=EPOCH)
        client.states[PROGRESS] = report.model_dump_json()
        answer = client.get("profile/dag", params=TASK)
        return answer.status_code, answer

    with ask() as client:
        assert client.get("profile/dag", params=TASK).status_code == 404
        status, answer = asked(f"{folder.relative_to(tmp_path)}/profile-1-0badcafe.json.gz")
        assert (status, answer.content) == (200, b"trace")
        assert answer.headers["Content-Disposition"].startswith("attachment;")
        status, answer = asked(f"{folder.relative_to(tmp_path)}/profile-1-00000000.json.gz")
        assert status == 502
        assert "found nothing there" in answer.json()["detail"]
        assert asked(f"{folder.relative_to(tmp_path)}/../../../../secret")[0] == 404
        assert asked("secret")[0] == 404
        assert client.get("placement/dag", params=TASK).json()["progress"]["has_profile"] is True


def test_the_placement_of_a_placed_task_says_what_it_holds_and_its_progress(ask, store, fleet):
    (lease,) = [lease for lease in store.snapshot().leases if lease.request_id == fleet["fit"]]
    shares = TimeShares(data=0.31, compute=0.66, save=0.03)
    progress = Progress(
        step=120,
        at=EPOCH,
        saved_step=100,
        saved_at=EPOCH,
        phase=ProgressPhase.STEPPING,
        total=500,
        shares=shares,
    )
    store.add_speeds([LeaseSpeed(lease.id, a_speed(ends={lease.id: LATER}))], EPOCH)
    store.record([TransitionsNoted(fleet["fit"], (Transition(EPOCH, "HandedOver", "handed over"),))], EPOCH)
    with ask() as client:
        client.states[PROGRESS] = LeaseProgress(
            lease_id=lease.id, progress=progress, reported_at=EPOCH
        ).model_dump_json()
        shown = client.get("placement/dag", params=TASK).json()
        client.states[PROGRESS] = LeaseProgress(
            lease_id="other", progress=progress, reported_at=EPOCH
        ).model_dump_json()
        of_another_lease = client.get("placement/dag", params=TASK).json()
    assert (shown["state"], shown["worker"], shown["devices"]) == (
        "placed",
        "worker-a",
        ["nvidia/a100-sxm4-40gb GPU-0"],
    )
    assert [shown["progress"][name] for name in ("step", "total", "saved_step")] == [120, 500, 100]
    assert shown["progress"]["spent_on"] == "data 31 %, compute 66 %, save 3 %"
    assert datetime.fromisoformat(shown["progress"]["ends_at"]) == LATER
    assert of_another_lease["progress"] is None
    assert [(row["try_number"], row["worker"], row["state"], row["ended_at"]) for row in shown["tries"]] == [
        (1, "worker-a", LeaseState.GRANTED, None)
    ]
    assert [(row["phase"], row["text"]) for row in shown["transitions"]] == [
        ("handed over", "The engine has taken the task with its lease")
    ]


def test_a_reader_without_the_fleet_sees_the_reason_but_no_worker(show, monkeypatch):
    monkeypatch.setattr("hetero_airflow.web.page.page_routes.may_see_fleet", lambda user: False)
    shown = show("placement/dag", params=TASK | {"task_id": "waits"})
    assert shown["reason_code"] == "busy"
    assert (shown["holders"], shown["alternatives"][0]["candidates"]) == ([], [])


def test_a_task_without_a_request_gets_a_neutral_answer(ask):
    with ask() as client:
        for name in ("plain", HOSTILE, "x" * 250):
            shown = client.get("placement/dag", params={"run_id": HOSTILE, "task_id": name}).json()
            assert (shown["has_request"], shown["tries"]) == (False, [])
            assert client.get("forecast/dag", params={"run_id": HOSTILE, "task_id": name}).status_code == 200


def test_the_forecast_names_no_task_of_a_hidden_dag(show):
    shown = show("forecast/dag", params=TASK | {"task_id": "waits"})
    assert (shown["starts_now"], shown["middle"], shown["unknown_hidden"]) == (False, None, 1)
    assert shown["unknown"] == ["dag.fit"]


@pytest.mark.parametrize("view", [*VIEWS, "placement/dag?run_id=run&task_id=fit"])
def test_an_answer_without_news_is_not_sent_again(ask, store, view, monkeypatch):
    monkeypatch.setattr("hetero_airflow.web.page.page_routes.readings_period", lambda now: 1)
    with ask() as client:
        first = client.get(view)
        again = client.get(view, headers={"If-None-Match": first.headers["ETag"]})
        store.record([WorkerLost("worker-a")], LATER)
        later = client.get(view, headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert (later.status_code, "private" in later.headers["Cache-Control"]) == (200, True)


def test_usage_is_sent_again_after_a_minute(ask, monkeypatch):
    periods = [1]
    for module in (page_routes, usage_view):
        monkeypatch.setattr(module, "usage_period", lambda now: periods[0])
    with ask() as client:
        first = client.get("usage")
        headers = {"If-None-Match": first.headers["ETag"]}
        again = client.get("usage", headers=headers)
        periods[0] = 2
        later = client.get("usage", headers=headers)
    assert (first.status_code, again.status_code, again.content, later.status_code) == (200, 304, b"", 200)


def test_a_lost_worker_and_a_hold_are_shown_with_their_causes(ask, store):
    with ask() as client:
        drained = client.post("drain", json={"target": "worker-b/GPU-9", "reason": HOSTILE, "move": True})
        store.record([WorkerLost("worker-a")], LATER)
        worker = client.get("worker", params={"id": "worker-b"}).json()
        rows = {row["device"]: row for row in client.get("devices").json()["devices"]}
        assert (drained.status_code, drained.json()) == (200, {"target": "worker-b/GPU-9", "holds": 1})
        (hold,) = worker["holds"]
        assert (hold["device"], hold["kind"], hold["moves"]) == ("GPU-9", "drained", True)
        assert "(by ann, in Airflow's UI)" in hold["cause"]
        assert (rows["GPU-0"]["state"], rows["GPU-9"]["state"]) == ("faulty", "held")
        assert client.post("undrain", json={"target": "worker-b/GPU-9"}).json()["holds"] == 1
        assert client.get("worker", params={"id": "worker-b"}).json()["holds"] == []


@pytest.mark.parametrize("role", ["viewer", "user"])
def test_who_may_not_edit_pools_sees_everything_and_drains_nothing(ask, store, role):
    with ask(role) as client:
        statuses = [client.get(view).status_code for view in VIEWS]
        refused = client.post("drain", json={"target": "worker-b"})
        may_drain = client.get("worker?id=worker-b").json().get("may_drain")
    assert statuses == [200] * len(VIEWS)
    assert (refused.status_code, may_drain, store.snapshot().holds) == (403, False, ())
    assert "permission to edit Airflow's pools" in refused.json()["detail"]


@pytest.mark.parametrize("role", ["none", None])
def test_a_user_without_a_role_sees_nothing(ask, role):
    with ask(role) as client:
        for view in (
            *VIEWS,
            "placement/dag?run_id=run&task_id=fit",
            "forecast/dag?run_id=run&task_id=fit",
            "openapi.json",
        ):
            assert client.get(view).status_code == 403, view
        assert client.post("drain", json={"target": "worker-b"}).status_code == 403


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("devices?offset=-1", "offset"),
        ("devices?limit=101", "limit"),
        ("devices?limit=x", "limit"),
        ("devices?state=unknown", "state"),
        (f"devices?search={'x' * 300}", "search"),
        ("timeline?hours=nan", "hours"),
        ("usage?days=0", "days"),
        ("usage?days=100000", "days"),
        ("usage?by=secret", "by"),
        ("timeline?hours=-1", "hours"),
        ("timeline?hours=1000000", "hours"),
        ("worker", "id"),
        ("placement/dag?run_id=run", "task_id"),
        ("placement/dag?run_id=run&task_id=fit&map_index=1.5", "map_index"),
    ],
)
def test_bad_input_is_refused_with_the_field(ask, path, field):
    with ask() as client:
        answer = client.get(path)
    assert (answer.status_code, [row["loc"][-1] for row in answer.json()["detail"]]) == (422, [field])


def test_an_unknown_worker_is_not_found(ask):
    with ask() as client:
        answer = client.get("worker", params={"id": HOSTILE})
    assert (answer.status_code, "No worker has the id" in answer.json()["detail"]) == (404, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"target": "no such worker"}, 422),
        ({"target": ""}, 422),
        ({"target": "worker-b", "reason": "x" * 5000}, 422),
        ({"target": "worker-b", "surprise": 1}, 422),
        ({"target": math.pi}, 422),
        ([], 422),
    ],
)
def test_a_bad_order_changes_nothing(ask, store, body, status):
    with ask() as client:
        assert client.post("drain", json=body).status_code == status
    assert store.snapshot().holds == ()


@pytest.mark.parametrize(
    ("content", "status"),
    [(b" " * MAX_ORDER_BYTES + b"{}", 413), (gzip.compress(b" " * 10**7), 422), (b"[" * 10**4, 422), (b"", 422)],
)
def test_a_body_that_is_no_order_changes_nothing(ask, store, content, status):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    with ask() as client:
        for path in ("drain", "undrain"):
            assert client.post(path, content=content, headers=headers).status_code == status
    assert store.snapshot().holds == ()


def test_a_long_reason_keeps_the_name_of_its_author(ask, store):
    with ask() as client:
        assert client.post("drain", json={"target": "worker-b", "reason": "x" * 200}).status_code == 200
    (hold,) = store.snapshot().holds
    assert hold.cause.endswith("x (by ann, in Airflow's UI)")


def test_a_form_of_a_foreign_page_changes_nothing(ask, store):
    with ask() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            for path in ("drain", "undrain"):
                answer = client.post(path, content=b'{"target": "worker-b"}', headers={"Content-Type": kind})
                assert (answer.status_code, "application/json" in answer.json()["detail"]) == (415, True)
    assert store.snapshot().holds == ()


def test_the_timeline_has_the_leases_of_the_devices(show):
    shown = show("timeline?kind=gpu&hours=6")
    bars = {
        row["device"]: [(bar["task"] and bar["task"]["task_id"], bar["end"]) for bar in row["bars"]]
        for row in shown["rows"]
    }
    assert (shown["total"], bars) == (3, {"GPU-0": [("fit", None)], "GPU-1": [(None, None)], "GPU-9": []})


@pytest.fixture
def two_hours_later(monkeypatch):
    """The page's clock stands two hours after the leases began."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return EPOCH + timedelta(hours=2)

    monkeypatch.setattr(page_routes, "datetime", Clock)


def test_the_usage_of_tasks_names_no_hidden_dag(show, two_hours_later, monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__PRICES", '{"a100": 3}')
    monkeypatch.setenv("AIRFLOW__HETERO__SHARES", "research=1, secret_team/hidden=1")
    answers = {by: show(f"usage?by={by}&days=1") for by in ("dag", "task", "team", "owner")}
    for by, name in (("dag", "dag"), ("task", "dag.fit"), ("team", "dag"), ("owner", "ana")):
        rows = answers[by]["rows"]
        assert [(row["subject"], row["held_h"], row["leases"], row["cost"]) for row in rows] == [
            (name, 2.0, 1, 6.0),
            (None, 2.0, 1, 6.0),
        ]
        assert "secret" not in str(answers[by])
        assert "hidden" not in str(answers[by])
    (day,) = answers["dag"]["days"]
    assert (day["held_h"], day["free_h"], day["on_hold_h"]) == (4.0, 2.0, 0.0), "two of three GPUs are held"


def test_the_usage_of_devices_adds_up_and_labels_what_is_simulated(show, two_hours_later):
    devices = {row["subject"]: row for row in show("usage?by=device")["rows"]}
    models = [row["devices"] for row in show("usage?by=model")["rows"]]
    assert models == ["nvidia/a100-sxm4-40gb", "nvidia/a100-sxm4-40gb (simulated)", "generic/x86-64"]
    assert devices.keys() == {"worker-a/GPU-0", "worker-a/GPU-1", "worker-b/GPU-9", "worker-a/cpu"}
    for row in devices.values():
        assert row["existed_h"] == row["held_h"] + row["free_h"] + row["on_hold_h"] > 0
        assert (row["leases"], row["cost"]) == (None, None)


def test_the_schema_describes_every_view(show):
    schema = show("openapi.json")
    assert {"/page/map", "/page/devices", "/page/queue", "/page/timeline", "/page/usage", "/page/drain"} <= set(
        schema["paths"]
    )
    assert "FleetMap" in schema["components"]["schemas"]


def test_the_candidates_of_a_placement_have_their_scores(store, show):
    best = CandidateAccount("worker-b", ("GPU-9",), 21.5, {"memory": 1.5, "real": 20.0})
    account = Account("fifo", "placed", (AlternativeAccount("1 × gpu", 2, (), (best,)),), best)
    store.record([RequestSubmitted(a_pending("late", task_id="late"))], EPOCH)
    store.commit(Plan((a_place("late", "worker-b", **{"GPU-9": 1000})._replace(account=account),)), EPOCH, LATER)
    shown = show("placement/dag", params=TASK | {"task_id": "late"})
    assert shown["alternatives"][0]["candidates"] == [
        {
            "worker": "worker-b",
            "devices": ["GPU-9"],
            "score": 21.5,
            "terms": {"memory": 1.5, "real": 20.0},
            "is_chosen": True,
        }
    ]
