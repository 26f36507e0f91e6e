import math
from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.cli.requests.explain import (
    class_speeds,
    explain_report,
    history_json,
    speed_lines,
    speeds_json,
    with_task_names,
)
from hetero_airflow.cli.requests.missing_request import missing_request_cause
from hetero_airflow.model.estimates import NO_ESTIMATES
from hetero_airflow.model.lease import Claim, LeaseState
from hetero_airflow.model.plan import (
    Account,
    AlternativeAccount,
    CandidateAccount,
    Place,
    Plan,
    Reason,
    ReasonCode,
    Wait,
)
from hetero_airflow.model.run import Transition
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.scheduling.learning.learner import Learner
from hetero_airflow.store.store import (
    RequestHistory,
    RequestSubmitted,
    RequestWithdrawn,
    StartDelayed,
    TransitionsNoted,
    WorkerSeen,
)
from hetero_airflow.testing import EPOCH, FakeEngine, a_cpu, a_device, a_pending, a_speed, a_worker, move_lease
from tests.sqlite_store import SqliteStore

DECIDED = EPOCH + timedelta(seconds=10)
NOW = EPOCH + timedelta(seconds=70)
BUSY = Reason(ReasonCode.BUSY, "2 × nvidia/a100", "1 of 2 free")
LATER = timedelta(hours=1)


def a_store(*pending: object) -> SqliteStore:
    store = SqliteStore()
    worker = a_worker("worker-a", (a_cpu(), a_device("GPU-0"), a_device("GPU-1", index=1, simulated=True)))
    store.record([WorkerSeen(worker), *map(RequestSubmitted, pending)], EPOCH)
    return store


def history_of(store: SqliteStore, task_id: str, map_index: int = -1) -> RequestHistory:
    history = store.request_history("dag", "run", task_id, map_index)
    assert history is not None
    return history


def text_of(render, store: SqliteStore, task_id: str, map_index: int = -1) -> str:
    workers = {worker.id: worker for worker in store.snapshot().workers}
    return render(explain_report(history_of(store, task_id, map_index), workers, NOW))


def wait(request_id: str, position: int) -> Wait:
    filtered = ((3, BUSY), (1, Reason(ReasonCode.LABELS, "zone=a", "zone=b")))
    alternatives = (AlternativeAccount("2 × nvidia/a100", 4, filtered), AlternativeAccount("1 × nvidia/h100", 4, ()))
    return Wait(request_id, position, BUSY, Account("fifo", f"waits at position {position}", alternatives))


def place(request_id: str, *candidates: CandidateAccount, alternative: int = 0) -> Place:
    claims = (Claim(device_id="GPU-0", share_milli=500, memory_bytes=2**34), Claim(device_id="cpu", share_milli=2000))
    accounts = (AlternativeAccount("1 × nvidia/h100", 1, ()),) * alternative
    account = Account("fifo", "placed", (*accounts, AlternativeAccount("0.5 of a gpu", 3, (), candidates)))
    return Place(request_id, "worker-a", alternative, claims, account)


def test_a_waiting_task_has_its_place_and_what_each_alternative_lacks(render):
    store = a_store(a_pending("r1", ["a100:2", "h100"], priority="high", weight=7, map_index=2, try_number=3))
    store.commit(Plan((wait("r1", 5),)), EPOCH, EPOCH + LATER)
    store.commit(Plan((wait("r1", 2),)), DECIDED, EPOCH + LATER)
    assert (
        text_of(render, store, "r1", 2)
        == """\
dag.r1[2], run run, try 3
Asks for   2 × nvidia/a100
           or 1 × nvidia/h100
Priority   high, weight 7
Submitted  2026-01-01 00:00:00 UTC, 1 min 10 s ago
Waiting    at position 2 of the queue
           busy: asked 2 × nvidia/a100, found 1 of 2 free

Decided 1 min ago, 2026-01-01 00:00:10 UTC
fifo: waits at position 2
  2 × nvidia/a100: 4 workers evaluated
    3 ruled out by busy: asked 2 × nvidia/a100, found 1 of 2 free
    1 ruled out by labels: asked zone=a, found zone=b
  1 × nvidia/h100: 4 workers evaluated
1 earlier decision: see --json"""
    )


def test_other_tasks_have_their_names_and_no_ids(render):
    first, gone = "01a1fa1b-42d5-78df-9288-5b4d2de1f4f1", "02b2fa1b-42d5-78df-9288-5b4d2de1f4f2"
    reserved = Reason(ReasonCode.RESERVED, "1 × gpu", f"{first} ahead in the queue")
    account = Account("priority", f"waits behind {gone}", (AlternativeAccount("1 × gpu", 1, ((1, reserved),)),))
    store = a_store(a_pending("r1"))
    store.commit(Plan((Wait("r1", 2, reserved, account),)), DECIDED, EPOCH + LATER)
    asked = []
    history = with_task_names(
        history_of(store, "r1"), lambda ids: asked.append(ids) or [a_pending(first, task_id="fit", map_index=3)]
    )
    text = render(explain_report(history, {}, NOW))
    assert "found dag.fit[3] (run) ahead in the queue" in text
    assert "priority: waits behind another task" in text
    assert "01a1fa1b" not in text
    assert asked == [{first, gone}]


def test_a_task_without_a_decision_says_so(render):
    assert (
        text_of(render, a_store(a_pending("r1")), "r1").splitlines()[-1]
        == "Waiting    no decision yet; if this does not change, no scheduler runs with HeteroExecutor"
    )


def test_a_placed_task_has_its_lease_and_why_that_device_won(render):
    best = CandidateAccount("worker-a", ("GPU-0",), 21.5, {"real": 20.0, "memory": 1.5})
    next_best = CandidateAccount("worker-b", ("GPU-7",), 20.25, {"real": 20.0, "memory": 0.25})
    third = CandidateAccount("worker-c", ("GPU-8",), 1.0, {"real": 0.0, "memory": 1.0})
    store = a_store(a_pending("r1", "gpu:0.5", quota={"cpus": 2}))
    store.commit(Plan((place("r1", best, next_best, third),)), DECIDED, EPOCH + LATER)
    assert (
        text_of(render, store, "r1")
        == """\
dag.r1, run run
Asks for   0.5 of a gpu (cpus=2), cooperative
Priority   medium, weight 1
Submitted  2026-01-01 00:00:00 UTC, 1 min 10 s ago
Placed     on worker-a, lease granted, granted 1 min ago
           0.5 of nvidia/a100-sxm4-40gb GPU-0, cooperative: 16GiB
           2 cpu cores (0-1)
           renewed until 2026-01-01 01:00:00 UTC

Decided 1 min ago, 2026-01-01 00:00:10 UTC
fifo: placed
  0.5 of a gpu: 3 workers evaluated
    possible: worker-a (GPU-0), score 21.5 = real 20 + memory 1.5
    possible: worker-b (GPU-7), score 20.25 = real 20 + memory 0.25
    possible: worker-c (GPU-8), score 1 = real 0 + memory 1
worker-a (GPU-0) won: it scored 21.5, the next best worker-b (GPU-7) 20.25
the largest difference: memory 1.5 against 0.25"""
    )


@pytest.mark.parametrize(
    ("candidates", "alternative", "why"),
    [
        ([], 0, []),
        ([CandidateAccount("worker-z", ("GPU-0",), 1.0)], 0, []),
        ([CandidateAccount("worker-a", ("GPU-1",), 1.0)], 0, []),
        (
            [CandidateAccount("worker-a", ("GPU-0",), 1.0)],
            0,
            ["worker-a (GPU-0) was taken: the policy had no other candidate"],
        ),
        (
            [CandidateAccount("worker-a", ("GPU-0",), 1.0), CandidateAccount("worker-b", ("GPU-0",), 1.0)],
            1,
            [
                "Alternative 2 was taken",
                "worker-a (GPU-0) won: worker-b (GPU-0) also scored 1, and the first of equal candidates is taken",
            ],
        ),
        ([CandidateAccount("worker-a", ("GPU-0",), 1.0), CandidateAccount("worker-b", ("GPU-0",), 2.0)], 0, []),
        (
            [CandidateAccount("worker-a", ("GPU-0",), 2.0), CandidateAccount("worker-b", ("GPU-0",), 1.0)],
            0,
            ["worker-a (GPU-0) won: it scored 2, the next best worker-b (GPU-0) 1"],
        ),
    ],
)
def test_why_it_won_says_no_more_than_the_account_does(render, candidates, alternative, why):
    store = a_store(a_pending("r1", ["h100", "gpu:0.5"]))
    store.commit(Plan((place("r1", *candidates, alternative=alternative),)), DECIDED, EPOCH + LATER)
    lines = text_of(render, store, "r1").splitlines()
    after = [line for line in lines[lines.index("fifo: placed") + 1 :] if line and not line.startswith(" ")]
    assert after == why


def test_a_refused_task_has_what_comes_nearest(render):
    store = a_store(a_pending("r1", "h100"))
    Cycle(store, PriorityPolicy(), FakeEngine(), 60).run(DECIDED)
    assert (
        text_of(render, store, "r1")
        == """\
dag.r1, run run
Asks for   1 × nvidia/h100
Priority   medium, weight 1
Submitted  2026-01-01 00:00:00 UTC, 1 min 10 s ago
Ended      2026-01-01 00:00:10 UTC, 1 min ago: model: asked nvidia/h100, found nvidia/a100-sxm4-40gb
           (worker worker-a)
           No known worker can ever run it. Nearest: worker worker-a has 1 × nvidia/a100-sxm4-40gb +
           1 × nvidia/a100-sxm4-40gb (simulated) (model: asked nvidia/h100, found
           nvidia/a100-sxm4-40gb)

Decided 1 min ago, 2026-01-01 00:00:10 UTC
priority: no known worker could ever run it
  1 × nvidia/h100: 1 worker evaluated
    1 ruled out by model: asked nvidia/h100, found nvidia/a100-sxm4-40gb"""
    )


def test_a_placed_task_that_does_not_run_yet_says_why(render):
    store = a_store(a_pending("r1"))
    store.commit(Plan((place("r1"),)), DECIDED, EPOCH + LATER)
    store.record([StartDelayed("r1", Reason(ReasonCode.RUNTIME, "a container", 'Back-off pulling image "x"'))], DECIDED)
    assert text_of(render, store, "r1").splitlines()[4:6] == [
        'Placed     does not run yet: runtime: asked a container, found Back-off pulling image "x"',
        "           on worker-a, lease granted, granted 1 min ago",
    ]


def test_an_ended_task_has_its_cause_and_what_it_held(render):
    store = a_store(a_pending("r1", "gpu:0.5"), a_pending("r2"), a_pending("r3"))
    lease = store.commit(Plan((place("r1"),)), DECIDED, EPOCH + LATER).leases[0]
    move_lease(
        store, lease.id, lease.token, LeaseState.EVICTED, DECIDED + timedelta(seconds=30), "its host\x1b[31m is gone"
    )
    store.record([RequestWithdrawn("r2", "revoked"), RequestWithdrawn("r3", "")], DECIDED)
    assert text_of(render, store, "r1").splitlines()[4:8] == [
        "Ended      2026-01-01 00:00:40 UTC, 30 s ago: its host\\x1b[31m is gone",
        "           on worker-a, lease evicted, granted 1 min ago",
        "           0.5 of nvidia/a100-sxm4-40gb GPU-0, cooperative: 16GiB",
        "           2 cpu cores (0-1)",
    ]
    assert text_of(render, store, "r2").splitlines()[4:] == ["Ended      2026-01-01 00:00:10 UTC, 1 min ago: revoked"]
    assert text_of(render, store, "r3").splitlines()[4:] == [
        "Ended      2026-01-01 00:00:10 UTC, 1 min ago: no cause is known"
    ]


def test_what_happened_to_the_run_of_a_task_is_told_with_the_names_of_tasks(render):
    other = "0190a1b2-0000-7000-8000-000000000001"
    store = a_store(a_pending("r1"), a_pending(other, task_id="urgent"))
    steps = [Transition(EPOCH, "Freed", "over"), Transition(DECIDED, "Freed", "over", f"for {other}")]
    store.record([TransitionsNoted("r1", tuple(steps))], DECIDED)
    named = with_task_names(history_of(store, "r1"), lambda _: store.snapshot().pending)
    lines = render(explain_report(named, {}, NOW)).splitlines()
    assert [" ".join(line.split()) for line in lines[-3:]] == [
        "At Then What was found out",
        "2026-01-01 00:00:00 UTC over The devices of the lease are free",
        "2026-01-01 00:00:10 UTC over The devices of the lease are free: for dag.urgent (run)",
    ]


def test_a_task_that_waits_again_shows_the_lease_it_had_as_past(render):
    store = a_store(a_pending("r1", "gpu:0.5"))
    lease = store.commit(Plan((place("r1"),)), EPOCH, EPOCH + LATER).leases[0]
    move_lease(store, lease.id, lease.token, LeaseState.RELEASED, EPOCH, "not dispatched")
    store.record([RequestSubmitted(a_pending("r1", "gpu:0.5"))], DECIDED)
    store.commit(Plan((wait("r1", 1),)), DECIDED, EPOCH + LATER)
    assert text_of(render, store, "r1").splitlines()[4:7] == [
        "Waiting    at position 1 of the queue",
        "           busy: asked 2 × nvidia/a100, found 1 of 2 free",
        "           before: on worker-a, lease released, granted 1 min 10 s ago",
    ]


def test_a_wait_that_ends_by_itself_says_when(render):
    store = a_store(a_pending("r1", "gpu:2", topology="nvlink@10m"))
    end, then = NOW + timedelta(minutes=7), "it takes any free devices"
    scattered = Reason(ReasonCode.SCATTERED, "2 × gpu (topology=nvlink)", "2 free", end, then)
    store.commit(Plan((Wait("r1", 1, scattered, Account("test", "waits")),)), DECIDED, EPOCH + LATER)
    lines = text_of(render, store, "r1").splitlines()
    assert "2 × gpu (topology=nvlink@10m)" in lines[1]
    assert " ".join(line.strip() for line in lines[5:7]) == (
        "scattered: asked 2 × gpu (topology=nvlink), found 2 free; after 7 min it takes any free devices"
    )


def test_names_in_accounts_break_no_line(render):
    store = a_store(a_pending("r1"))
    account = Account("pol\nicy", "sum\x1b[31mmary", (AlternativeAccount("a\u202esked", 1, ((1, BUSY),)),))
    store.commit(Plan((Wait("r1", 1, BUSY, account),)), DECIDED, EPOCH + LATER)
    assert text_of(render, store, "r1").splitlines()[-3:-1] == [
        "pol\\nicy: sum\\x1b[31mmary",
        "  a\\u202esked: 1 worker evaluated",
    ]


def test_json_is_the_whole_history():
    store = a_store(a_pending("r1"))
    store.commit(Plan((wait("r1", 1),)), DECIDED, EPOCH + LATER)
    history = history_of(store, "r1")
    assert history_json(history) == {
        "pending": {
            "id": "r1",
            "request": history.pending.request.model_dump(mode="json"),
            "submitted_at": "2026-01-01T00:00:00Z",
            "weight": 1,
            "dag_id": "dag",
            "run_id": "run",
            "task_id": "r1",
            "map_index": -1,
            "try_number": 1,
            "attained_service_s": {},
            "gang": "",
            "gang_size": 1,
            "is_paused": False,
            "interruptions": 0,
        },
        "state": "waiting",
        "ended_at": None,
        "cause": "",
        "leases": [],
        "decisions": [dict(history.decisions[0])],
        "transitions": [],
    }
    assert history_json(replace(history, ended_at=NOW))["ended_at"] == "2026-01-01T00:01:10Z"


@pytest.mark.parametrize(
    ("runs", "has_run", "states", "map_index", "expected"),
    [
        ([], False, {}, -1, ("no run of a DAG dag", "`airflow dags list` shows the DAGs")),
        (["r9", "r8"], False, {}, -1, ("no such run", "Its newest runs are r9, r8")),
        ([f"r{n}" for n in range(6)], False, {}, -1, ("no such run", "Its newest runs are r0, r1, r2, r3, r4, …")),
        (["r"], True, {}, -1, ("no such task in the run", "Its tasks are train, test")),
        (["r"], True, {-1: "success"}, 0, ("a task that is not mapped", "Leave --map-index out")),
        (
            ["r"],
            True,
            {0: "success", 1: None},
            -1,
            ("no such instance of a mapped task", "Give --map-index 0 or 1"),
        ),
        (
            ["r"],
            True,
            {-1: None},
            -1,
            ("a task that is not queued yet", "Try again when it is queued: it requests its devices then"),
        ),
        (
            ["r"],
            True,
            {2: "scheduled"},
            2,
            ("a task that is not queued yet", "Try again when it is queued: it requests its devices then"),
        ),
        (
            ["r"],
            True,
            {-1: "running"},
            -1,
            (
                "no request; the task instance is running",
                "It requests no device, it does not run with HeteroExecutor, or its history was pruned",
            ),
        ),
    ],
)
def test_the_cause_of_a_missing_request(runs, has_run, states, map_index, expected):
    assert missing_request_cause("dag", runs, has_run, ["train", "test"], states, map_index) == expected


TRAIN = ("dag", "train")
V100, K80 = "nvidia/v100", "nvidia/k80"


def known(*measured, classes=(V100, K80)):
    learner = Learner()
    learner.learn_speeds(measured)
    return class_speeds(TRAIN, learner.estimates(frozenset(classes)), measured, classes)


def speed(steps_per_s, on, **fields):
    return a_speed(steps_per_s, task=TRAIN, device_class=on, **fields)


def test_a_task_that_reports_no_steps_has_no_lines():
    assert class_speeds(TRAIN, NO_ESTIMATES, (), (V100,)) == ()
    assert class_speeds(("dag", "other"), NO_ESTIMATES, [speed(2.1, V100)], (V100,)) == ()


def test_measured_classes_are_shown_with_their_steps_error_and_ratio():
    lines = list(speed_lines(known(speed(2.1, V100, deviation=0.05, steps=240), speed(1.05, K80, steps=63))))
    assert lines == [
        "nvidia/v100: learned from 240 steps on this device: 2.1 ± 0.1 steps/s",
        "nvidia/k80: learned from 63 steps on this device: 1.05 ± 0.02 steps/s, 0.5 of the fastest",
    ]


def test_a_class_that_was_not_tried_is_shown_with_its_range():
    first, second = speed_lines(known(speed(2.0, V100)))
    assert first.startswith("nvidia/v100: learned from 120 steps")
    assert (
        second
        == "nvidia/k80: not tried yet: 0.16 to 0.65 steps/s by other tasks and the data sheets, 0.16 of the fastest"
    )


def test_a_speed_that_nothing_else_resembles_is_shown_with_what_it_counts():
    lines = list(speed_lines(known(speed(1.0, V100), speed(1e12, K80))))
    assert "it counts as" in "".join(lines)


def test_the_json_of_speeds_has_the_values():
    (value, _) = speeds_json(known(speed(2.0, V100)))["speeds"]
    assert (value["device_class"], value["steps"], round(value["steps_per_s"], 3)) == (V100, 120, 2.0)
    assert all(not isinstance(part, float) or math.isfinite(part) for part in value.values())


def test_the_report_has_a_row_of_speeds(render):
    store = SqliteStore()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("train"))], EPOCH)
    history = store.request_history("dag", "run", "train")
    ends_at = EPOCH + timedelta(minutes=90)
    text = render(explain_report(history, {}, EPOCH, None, known(speed(2.1, V100, steps=240)), ends_at))
    assert "Speed" in text
    assert "learned from 240 steps on this device" in text
    assert "Ends" in text
    assert "2026-01-01 01:30:00 UTC, in 1 h 30 min, by the steps that it reports" in text
