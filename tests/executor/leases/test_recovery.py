"""Tasks whose process is lost, and tasks that come back after a failure, as the scheduler sees them."""

import json
from types import SimpleNamespace

import pytest
from airflow.utils.state import TaskInstanceState

from hetero_airflow.contract.envelope import read_lease
from hetero_airflow.discovery.health.xid_watch import XidEvent
from hetero_airflow.engines.engine import TerminationCause
from hetero_airflow.executor import command_runner
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.events import EngineEnded, HeartbeatLost
from hetero_airflow.executor.leases import recovery
from hetero_airflow.executor.run import Phase, Run
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.worker import Inventory
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.recovery.rules import parse_rules
from hetero_airflow.store.store import HoldLifted, HoldPlaced, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_worker, move_lease
from tests.executor.conftest import Key, recorded_failures


@pytest.fixture
def states(monkeypatch):
    """Key → the failures on record, in place of Airflow's task state store."""
    return recorded_failures(monkeypatch)


def lose(bench, name="a", device="gpu"):
    """A task that ran, and whose process and supervisor are gone since longer than the supervisor takes to tell."""
    id_ = bench.start(name, device)
    bench.beat(1)
    bench.engine.alive.clear()
    bench.beat(5, times=4)
    return id_


def test_a_lost_task_is_sent_back_with_the_same_try_and_its_loss_is_on_record(bench, states):
    id_ = lose(bench)
    assert (bench.tasks.sent_back, bench.reports) == ([id_], [])
    (record,) = states["a"]
    assert (record["failure_class"], record["worker"], record["device_ids"]) == ("lost_worker", "worker-a", ["GPU-0"])
    assert bench.notes[-1][0] == "a"
    assert "requeued at once, for the 1st time of 5" in bench.notes[-1][1]
    assert bench.store.snapshot().leases == ()


def test_a_task_whose_lease_a_cycle_took_back_first_is_sent_back_too(bench, states):
    """Of a scheduler that died with its tasks: the next one's cycle finds the lease expired and the process gone."""
    id_ = bench.start("a")
    bench.beat(1)
    bench.engine.alive.clear()
    lease = bench.lease(id_)
    move_lease(bench.store, lease.id, lease.token, LeaseState.EVICTED, bench.clock.now())
    bench.beat(30)
    assert (bench.tasks.sent_back, bench.reports) == ([id_], [])


def test_a_task_that_is_lost_too_often_is_left_to_its_retries(bench, states):
    states["a"] = [failure(token=number, failure_class="lost_worker") for number in range(100, 105)]
    lose(bench)
    assert bench.tasks.sent_back == []
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]


@pytest.mark.parametrize(
    ("event", "state", "is_sent_back"),
    [
        (HeartbeatLost(), "running", True),
        (HeartbeatLost(), "queued", False),
        (EngineEnded(TaskInstanceState.FAILED, None, TaskProcess("queued")), "queued", True),
    ],
)
def test_a_task_without_a_lease_is_sent_back_too_but_no_later_run_of_it(bench, states, event, state, is_sent_back):
    bench.tasks.rows["id-a"] = TaskProcess(state)
    bench.runs.note_sent(Key("a"), "id-a", None, bench.clock.now())
    bench.commands.apply([(bench.runs.sent["a"], event)], bench.clock.now())
    bench.commands.decide_lost(bench.clock.now())
    assert (bench.tasks.sent_back, bench.reports) == (["id-a"] if is_sent_back else [], [])
    (record,) = states["a"]
    assert (record["failure_class"], record.get("worker"), record.get("token")) == ("lost_worker", None, None)


def test_a_task_without_a_lease_that_is_lost_too_often_is_left_to_its_retries(bench, states):
    states["a"] = [failure(token=number, failure_class="lost_worker") for number in range(100, 105)]
    bench.tasks.rows["id-a"] = TaskProcess("running")
    bench.runs.note_sent(Key("a"), "id-a", None, bench.clock.now())
    bench.commands.apply([(bench.runs.sent["a"], HeartbeatLost())], bench.clock.now())
    bench.commands.decide_lost(bench.clock.now())
    assert bench.tasks.sent_back == []
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]


def test_a_loss_that_can_not_be_put_on_record_is_left_to_the_retries(bench, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("no backend")

    monkeypatch.setattr(recovery, "read_states", broken)
    monkeypatch.setattr(recovery, "write_state", broken)
    lose(bench)
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]
    assert "Can't record that" in caplog.text


GIB = 2**30


def kill(bench, name="a", memory_bytes=4 * GIB):
    """A task whose pod the kernel has killed for want of memory, its supervisor with it; its id and lease."""
    id_ = bench.start(name)
    bench.beat(1)
    lease = bench.lease(id_)
    loss = TerminationCause(is_out_of_memory=True, host_memory_bytes=memory_bytes)
    bench.on_a_cluster({lease.id: loss}, {lease.id: "pod default/a (oom killed)"})
    bench.beat(5, times=2)
    return id_, lease


def test_a_task_whose_pod_is_killed_for_memory_is_sent_back_and_asks_for_twice_as_much(bench, states):
    id_, lease = kill(bench)
    assert (bench.tasks.sent_back, bench.reports) == ([id_], [])
    (record,) = states["a"]
    recorded = {name: record[name] for name in ("failure_class", "host_memory_bytes", "token")}
    assert recorded == {"failure_class": "host_memory", "host_memory_bytes": 4 * GIB, "token": lease.token}
    assert bench.notes == [
        ("a", "It ran out of host memory (the kernel killed 1 for memory in its cgroup): "
              "requeued at once, for the 1st time of 3, without using a retry, by the rule for host_memory.")
    ]  # fmt: skip
    bench.hold("a")
    bench.beat(1)
    assert str(bench.store.snapshot().holders[id_].request) == "1 × gpu (host_memory=8GiB)"


def test_a_task_whose_node_could_not_start_its_pod_is_sent_back_and_goes_elsewhere(bench, states):
    id_ = bench.start("a")
    bench.beat(1)
    lease = bench.lease(id_)
    problem = TerminationCause(worker_problem="nvidia-container-cli: initialization error")
    bench.on_a_cluster({lease.id: problem}, {lease.id: "pod default/a (node broken)"})
    bench.beat(5, times=2)
    assert (bench.tasks.sent_back, bench.reports) == ([id_], [])
    (record,) = states["a"]
    assert (record["failure_class"], record["is_of_host"]) == ("worker", True)


@pytest.mark.parametrize(
    ("earlier", "rules", "why"),
    [
        ([1 * GIB, 2 * GIB, 3 * GIB], "", "and it was requeued for this 3 times already"),
        ([4 * GIB], "", "and it had no more memory than the last time"),
        ([], '{"host_memory": {"action": "retry"}}', "since the task has no retry left, by the rule"),
        ([], '{"host_memory": {"times": 0}}', "and it is never requeued for this"),
    ],
)
def test_what_the_rules_do_not_send_back_fails_and_is_told_why(bench, states, earlier, rules, why):
    bench.commands.recovery._rules = parse_rules(rules)
    states["a"] = [
        failure(token=100 + number, failure_class="host_memory", host_memory_bytes=size)
        for number, size in enumerate(earlier)
    ]
    kill(bench)
    assert bench.tasks.sent_back == []
    assert bench.reports == [("a", "failed", "HeteroExecutor: pod default/a (oom killed)")]
    (note,) = bench.notes
    assert why in note[1]


def test_a_loss_that_was_on_record_when_its_scheduler_died_counts_once(bench, states):
    id_, lease = kill(bench)
    record = list(states["a"])
    bench.take_over(Key("a"), lease)  # the next scheduler adopts it before it was sent back
    bench.beat(5, times=2)
    assert (states["a"], bench.tasks.sent_back) == (record, [id_, id_])


def failure(**fields):
    return Failure(**{"evidence": "test", "at": EPOCH, "epoch": 0, **fields}).model_dump(mode="json")


def test_a_task_that_ran_out_of_memory_asks_for_more_when_it_comes_back(bench, states):
    small, large = a_device("GPU-1", memory="24GiB"), a_device("GPU-2", index=1, memory="80GiB")
    bench.store.record([WorkerSeen(a_worker(devices=(a_cpu(), small, large)))], bench.clock.now())
    states["a"] = [failure(failure_class="device_memory", device_ids=["GPU-1"], memory_bytes=24 * 2**30, token=1)]
    id_ = bench.hold("a")
    bench.tasks.sent_back.append(id_)
    bench.beat()
    pending = bench.lease(id_)
    assert [claim.device_id for claim in pending.claims] == ["GPU-2"]
    assert str(bench.store.snapshot().holders[id_].request) == "1 × gpu (memory=48GiB..)"


def test_what_failed_before_a_clear_changes_nothing(bench, states):
    states["a"] = [failure(failure_class="device_memory", memory_bytes=24 * 2**30, token=1)]
    bench.tasks.epochs = lambda ids: dict.fromkeys(ids, 3)
    id_ = bench.hold("a")
    bench.tasks.sent_back.append(id_)
    bench.beat()
    assert str(bench.store.snapshot().holders[id_].request) == "1 × gpu"


def test_a_task_that_never_ran_before_costs_no_look_into_the_state_store(bench, monkeypatch):
    monkeypatch.setattr(recovery, "read_states", lambda *_: pytest.fail("looked"))
    bench.hold("a")
    bench.beat()
    assert bench.started == ["a"]


def free(bench, key, lease):
    """The processes of a run that was lost are gone."""
    run = Run(key, lease.request_id, Phase.OVER, lease=lease)
    bench.commands._learn_from(run, None, bench.commands._explain(run, None), bench.clock.now())


def test_hardware_failures_of_tasks_reach_the_watch_over_the_devices(bench, states):
    reported = []
    bench.commands.health.report = lambda failure, task: reported.append((failure.failure_class, task))
    id_ = bench.start("a")
    lease = bench.lease(id_)
    (key,) = bench.runs.leased
    states[key] = [failure(failure_class="hardware", token=lease.token)]
    for freed in (lease, lease.model_copy(update={"token": 99})):
        free(bench, key, freed)
    assert reported == [("hardware", "dag.a")]


@pytest.mark.parametrize("engine", ["local", "celery"])
def test_a_hardware_failure_of_a_task_takes_its_device_out_on_any_host(bench, states, engine):
    bench.store.record([WorkerSeen(a_worker(engine=engine))], bench.clock.now())
    id_ = bench.start("a")
    lease = bench.lease(id_)
    (key,) = bench.runs.leased
    device_id = lease.claims[0].device_id
    fields = {"evidence": f"Xid 79 on {device_id}", "worker": "worker-a", "device_ids": (device_id,)}
    states[key] = [failure(failure_class="hardware", token=lease.token, **fields)]
    free(bench, key, lease)
    bench.beat()
    assert [(hold.device_id, hold.kind) for hold in bench.store.snapshot().holds] == [(device_id, HoldKind.QUARANTINED)]


def hear_xid(bench, xid, device_id="GPU-0"):
    """NVIDIA's driver tells of an error on this host."""
    bench.dispatcher.health.host.take_inventory(Inventory(worker=a_worker()), bench.clock.now())
    bench.xids.append(XidEvent(uuid=device_id, xid=xid, at=bench.clock.now()))


@pytest.fixture
def listening(bench):
    bench.xids = []
    host = bench.dispatcher.health.host
    host._xids = SimpleNamespace(poll=lambda: [bench.xids.pop() for _ in list(bench.xids)])
    return bench


@pytest.mark.parametrize(("xid", "failure_class"), [(79, "hardware"), (45, "lost_worker")])
def test_a_task_that_is_lost_with_its_device_failed_by_the_hardware(listening, states, xid, failure_class):
    id_ = listening.start("a")
    listening.beat(1)
    listening.engine.alive.clear()
    hear_xid(listening, xid)
    listening.beat(5, times=4)
    (record,) = states["a"]
    assert (listening.tasks.sent_back, record["failure_class"]) == ([id_], failure_class)
    assert ("had a hardware error" in listening.notes[-1][1]) == (failure_class == "hardware"), "when it was decided"
    assert [hold.device_id for hold in listening.store.snapshot().holds] == (["GPU-0"] if xid == 79 else [])


@pytest.mark.parametrize(
    ("before", "device_id", "after"),
    [
        ("unknown", "GPU-0", "hardware"),
        ("device_memory", "GPU-0", "hardware"),
        ("unknown", "GPU-1", "unknown"),
        ("preempted", "GPU-0", "preempted"),
    ],
)
def test_a_failure_that_an_xid_of_its_device_explains_is_put_on_record_as_the_hardwares(
    listening, states, before, device_id, after
):
    id_ = listening.start("a")
    lease = listening.lease(id_)
    (key,) = listening.runs.leased
    assert [claim.device_id for claim in lease.claims] == ["GPU-0"]
    unrelated = failure(failure_class="network", token=99)
    states[key] = [
        unrelated,
        failure(failure_class=before, token=lease.token, worker="worker-a", device_ids=("GPU-0",)),
    ]
    hear_xid(listening, 79, device_id)
    free(listening, key, lease)
    assert states[key][0] == {"failure_class": "network"} | states[key][0]
    assert states[key][1]["failure_class"] == after
    listening.beat()
    assert listening.store.health()["worker-a", device_id].strikes == 1


def test_an_xid_from_before_the_lease_explains_nothing(listening, states):
    hear_xid(listening, 79)
    listening.beat()
    listening.beat(60)
    listening.store.record([HoldLifted("worker-a", "GPU-0", HoldKind.QUARANTINED)], listening.clock.now())
    id_ = listening.start("a")
    (key,) = listening.runs.leased
    states[key] = [failure(token=listening.lease(id_).token, failure_class="unknown", device_ids=("GPU-0",))]
    free(listening, key, listening.lease(id_))
    assert states[key][0]["failure_class"] == "unknown"


def test_tasks_on_a_drained_device_move_if_they_are_to(bench, states, monkeypatch):
    notices = {}
    monkeypatch.setattr(
        command_runner, "write_state", lambda key, name, text: notices.__setitem__(key, json.loads(text))
    )
    staying, moves = bench.hold("stays"), bench.hold("moves")
    bench.beat()
    bench.run(staying)
    bench.run(moves)
    on = {id_: bench.lease(id_).claims[0].device_id for id_ in (staying, moves)}
    for id_, is_moving in ((staying, False), (moves, True)):
        hold = Hold("worker-a", on[id_], HoldKind.DRAINED, "a new fan", EPOCH, "a person undrains it", moves=is_moving)
        bench.store.record([HoldPlaced(hold)], bench.clock.now())
    bench.beat(1, times=2)
    assert {key: value["notice"]["cause"].split(";")[0] for key, value in notices.items()} == {
        "moves": "moved: drained since 2026-01-01 00:00:00 UTC: a new fan"
    }
    assert (bench.lease(staying).state, bench.lease(moves).state) == (LeaseState.ACTIVE, LeaseState.PREEMPTED)


def test_a_task_that_has_waited_for_too_long_tries_its_next_alternative_first(bench, states):
    bench.start("blocker", "gpu:2")
    bench.store.record([WorkerSeen(a_worker("worker-z", (a_cpu(cores=2),)))], bench.clock.now())
    id_ = bench.hold("a", ["gpu:2", "gpu:1"])
    bench.beat(1)
    assert [pending.id for pending in bench.store.snapshot().pending] == [id_]
    bench.beat(50, times=40)
    (pending,) = bench.store.snapshot().pending
    assert (str(pending.request), pending.submitted_at) == (
        "1 × gpu or 2 × gpu",
        bench.queued["a"].since,
    )
    bench.finish("blocker")
    bench.beat(1)
    lease = read_lease(bench.engine.started[1].ti.context_carrier)
    assert (lease.count, lease.alternative) == (1, 1)  # counted as the user wrote it


def test_a_new_scheduler_keeps_the_order_of_the_alternatives(bench, states):
    bench.start("blocker", "gpu:2")
    id_ = bench.hold("a", ["gpu:2", "gpu:1"])
    bench.beat(50, times=40)
    task = bench.queued["a"]
    task.request = task.original_request = None  # as a scheduler sees it that has just adopted the task
    bench.beat(1)
    assert str(bench.queued["a"].request) == "1 × gpu or 2 × gpu"
    assert str(bench.store.snapshot().pending[0].request) == "1 × gpu or 2 × gpu"
    assert id_ == bench.queued["a"].request_id


def test_no_task_asks_for_memory_that_only_another_host_has(bench, states):
    """Nothing is placed there: to ask for it would be to wait for ever."""
    bench.store.record([WorkerSeen(a_worker("worker-z", (a_device("GPU-9", memory="192GiB"),)))], bench.clock.now())
    states["a"] = [failure(failure_class="device_memory", memory_bytes=40 * 2**30, token=1)]
    id_ = bench.hold("a")
    bench.tasks.sent_back.append(id_)
    bench.beat()
    assert bench.lease(id_).worker_id == "worker-a"
    assert str(bench.store.snapshot().holders[id_].request) == "1 × gpu (memory=40GiB..)"
