import itertools
from contextlib import closing
from datetime import timedelta

import pytest

from hetero_airflow.contract.envelope import read_lease
from hetero_airflow.contract.task_lease import lease_grant
from hetero_airflow.contract.task_secret import unwrapped
from hetero_airflow.discovery.inventory_watch import with_missing_devices
from hetero_airflow.engines.engine import EngineTraits, LeaseStatus, TerminationCause
from hetero_airflow.errors import EngineError, GrantRefused, StoreUnavailable
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import Inventory
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker
from tests.sqlite_store import SqliteStore


def test_a_placed_task_carries_its_lease_and_the_coordinators_queue(bench):
    bench.hold("train", "gpu:2")
    bench.beat()
    workload = bench.engine.started[0]
    lease = read_lease(workload.ti.context_carrier)
    assert (workload.ti.queue, lease.ids) == ("hetero", ("GPU-0", "GPU-1"))
    assert bench.tasks.records == [], "that would compete with the task's start"
    bench.beat(1)
    assert [(record[0].key, record[1]) for record in bench.tasks.records] == [("train", lease)]


def test_a_placed_task_gets_a_grant_for_itself_that_ends(bench):
    bench.hold("a[3]", task_id="a", map_index=3)
    bench.beat()
    lease = read_lease(bench.engine.started[0].ti.context_carrier)
    grant = lease_grant(lease, "dag/a/run/3")
    grant.check(token=lease.token, task="dag/a/run/3", key=grant.key)
    grant.check_start(bench.clock.now() + timedelta(seconds=60))
    with pytest.raises(GrantRefused, match=r"a grant that ended 3\d s ago"):
        grant.check_start(bench.clock.now() + timedelta(seconds=95))
    with pytest.raises(GrantRefused, match="signature does not fit"):
        lease_grant(lease, "dag/b/run/3").check(token=lease.token, task="dag/b/run/3", key=grant.key)


def test_the_runs_of_a_task_share_a_secret_that_no_other_task_has(bench):
    for name, task_id in (("a[3]", "a"), ("a[4]", "a"), ("b[0]", "b")):
        bench.hold(name, "gpu:0.1", task_id=task_id, map_index=int(name[2]))
    bench.beat()
    started = bench.engine.started
    leases = [read_lease(workload.ti.context_carrier) for workload in started]
    secrets = [unwrapped(lease.secret, workload.token) for lease, workload in zip(leases, started, strict=True)]
    assert [(secret == secrets[0], len(secret)) for secret in secrets] == [(True, 64), (True, 64), (False, 64)]
    assert [unwrapped(lease.secret, "another token") for lease in leases] == ["", "", ""]
    assert not any(secret in str(workload) for secret, workload in zip(secrets, started, strict=True))


def test_a_task_is_told_whether_its_next_run_may_be_on_another_host(bench):
    bench.hold("here", "gpu")
    bench.beat()
    bench.engine.traits = EngineTraits(is_local=False)
    bench.hold("anywhere", "gpu")
    bench.beat()
    are_remote = [read_lease(workload.ti.context_carrier).is_remote for workload in bench.engine.started]
    assert are_remote == [False, True]


def test_tasks_wait_until_devices_are_free_and_get_a_token_for_their_start(bench):
    for name in "abc":
        bench.hold(name)
    bench.beat()
    assert bench.started == ["a", "b"]
    assert list(bench.queued) == ["c"]
    bench.end("a")
    bench.beat(200)
    assert (bench.started, bench.tokens) == (["a", "b", "c"], ["a", "b", "c"])


def test_held_tasks_and_those_that_wait_in_the_engine_are_kept_fresh(bench):
    ids = [bench.hold(name) for name in "abc"]
    bench.engine.in_hand = set(ids)
    bench.beat()
    bench.beat(149)
    bench.beat(1)
    first = bench.tasks.refreshed[0][1]
    assert bench.tasks.refreshed == [(sorted(ids), first), (sorted(ids), first + timedelta(seconds=150))]


def test_a_held_task_that_airflow_does_not_want_any_more_leaves_the_queue(bench):
    bench.hold("a", "gpu:2")
    id_ = bench.hold("b")
    bench.beat()
    bench.tasks.rows[id_] = TaskProcess("failed")
    bench.beat(1)
    assert (list(bench.queued), bench.store.snapshot().pending, bench.reports) == ([], (), [])


def test_a_request_that_nothing_can_run_is_refused_with_the_nearest_worker(bench):
    bench.hold("a", "h100:8")
    bench.beat()
    key, state, reason = bench.reports[0]
    assert (key, state, list(bench.queued)) == ("a", "failed", [])
    assert "a100-sxm4-40gb" in reason


def test_a_task_fails_after_its_waiting_limit_and_not_before(bench):
    bench.hold("a", "gpu:2")
    bench.hold("b", wait_timeout=30)
    bench.beat()
    bench.beat(29.9)
    assert bench.reports == []
    bench.beat(1)
    assert [(key, state) for key, state, _ in bench.reports] == [("b", "failed")]
    assert "busy" in bench.reports[0][2]


def test_a_request_that_can_not_be_rendered_fails_its_task_alone(bench):
    bench.hold("a")
    bench.queued["a"].requested = {"device": "gpu:-{{ params.n }}"}
    id_ = bench.hold("b")
    bench.beat()
    assert bench.started == ["b"], "it does not wait for the templates of others"
    bench.run(id_)
    bench.beat_until(lambda: bench.reports)
    assert [(key, state) for key, state, _ in bench.reports] == [("a", "failed")]
    assert bench.started == ["b"]


def test_a_template_is_rendered_before_the_task_is_placed_and_keeps_its_place_in_the_queue(bench):
    bench.hold("templated")
    bench.queued["templated"].requested = {"device": "gpu:{{ params.n }}"}
    queued_at = bench.clock.now()
    bench.beat()
    assert (bench.started, bench.store.snapshot().pending) == ([], ())
    bench.beat_until(lambda: bench.started)
    (holder,) = bench.store.snapshot().holders.values()
    assert (str(holder.request), holder.submitted_at) == ("2 × gpu", queued_at)


def test_the_same_key_held_again_while_its_lease_is_not_free_waits_for_that(bench):
    """Trap 1: a deferred task comes back with the same key and id before its first leg's end is known."""
    bench.start("a", "gpu:2")
    bench.hold("a", "gpu:2")
    bench.beat(1)
    assert bench.started == ["a"]
    bench.finish("a")
    bench.beat(1)
    assert bench.started == ["a", "a"]


def test_requests_that_airflow_gave_up_while_no_scheduler_looked_leave_the_queue(bench):
    forgotten, foreign = "00000000-0000-0000-0000-00000000000f", "00000000-0000-0000-0000-00000000000a"
    bench.store.record([RequestSubmitted(a_pending(forgotten)), RequestSubmitted(a_pending(foreign))], EPOCH)
    bench.tasks.rows[foreign] = TaskProcess("queued")
    bench.beat()
    assert [pending.id for pending in bench.store.snapshot().pending] == [foreign]
    assert bench.started == []


def test_a_task_that_a_dead_scheduler_sent_gets_a_new_lease_once_nothing_can_begin_under_the_old_one(make_bench):
    first = make_bench(worker=a_worker())
    id_ = first.hold("a")
    first.beat()
    second = make_bench(first.store)
    second.hold("a")
    sent = first.lease(id_)
    second.beat(1)
    assert (second.started, second.store.snapshot().leases) == ([], (sent,)), "its message may be on the way"
    second.beat(30, times=4)
    assert (second.started, second.lease(id_).token) == (["a"], sent.token + 1)


def test_a_lease_that_no_scheduler_has_used_is_claimed_by_one(make_bench):
    """As of a member of a gang that another scheduler placed."""
    first = make_bench()
    second = make_bench(first.store)
    id_ = first.hold("a")
    assert second.hold("a") == id_
    first.store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending(id_))], EPOCH)
    first.store.commit(Plan((a_place(id_, **{"GPU-0": 1000}),)), EPOCH, EPOCH + timedelta(minutes=1))
    for bench in (first, second):
        bench.beat(1)
    assert (first.started, second.started) == (["a"], [])


def test_a_database_that_does_not_answer_costs_one_warning_a_step_and_loses_nothing(make_bench, caplog):
    class FailingStore(SqliteStore):
        is_down = False

        def snapshot(self):
            if self.is_down:
                raise StoreUnavailable("the store", found="no answer", remedy="Start it")
            return super().snapshot()

    bench = make_bench(FailingStore(), worker=a_worker())
    bench.store.is_down = True
    bench.hold("a")
    bench.beat(1, times=3)
    warnings = [record.getMessage() for record in caplog.records if "Start it" in record.getMessage()]
    assert [text.partition(":")[0] for text in warnings] == ["Deciding", "Housekeeping"]
    bench.store.is_down = False
    bench.beat(1)
    assert bench.started == ["a"]


def test_a_device_that_vanishes_while_leased_gets_no_other_task(bench):
    bench.start("a", "gpu:2")
    bench.store.record([WorkerSeen(a_worker(devices=(a_device("GPU-1", index=1),)))], bench.clock.now())
    bench.hold("b")
    bench.beat(1)
    assert bench.started == ["a"]
    bench.finish("a")
    bench.beat(1)
    lease = read_lease(bench.engine.started[1].ti.context_carrier)
    assert (bench.started, lease.ids) == (["a", "b"], ("GPU-1",))


def test_a_worker_that_is_not_seen_any_more_is_lost_but_never_our_own_host(bench):
    bench.store.record([WorkerSeen(a_worker("worker-b"))], bench.clock.now())
    bench.beat(60, times=4)
    states = {worker.id: worker.state for worker in bench.store.snapshot().workers}
    assert states == {"worker-a": "online", "worker-b": "lost"}


@pytest.mark.parametrize("device", ["gpu", "gpu:0.5", "cpu:2", {"device": "gpu", "cpus": 2, "host_memory": "1GiB"}])
def test_every_device_kind_reaches_the_task(bench, device):
    bench.hold("a", device)
    bench.beat()
    assert read_lease(bench.engine.started[0].ti.context_carrier).worker == "worker-a"


def test_a_commit_whose_answer_was_lost_is_taken_up(make_bench):
    class ForgetfulStore(SqliteStore):
        is_cut_off = True

        def commit(self, plan, now, expires_at, pending_events=()):
            done = super().commit(plan, now, expires_at, pending_events)
            if self.is_cut_off and plan.places:
                self.is_cut_off = False
                raise StoreUnavailable("the answer", found="none", remedy="Wait")
            return done

    bench = make_bench(ForgetfulStore(), worker=a_worker())
    bench.hold("a")
    bench.beat()
    assert bench.started == []
    bench.beat(1)
    assert bench.started == ["a"]
    assert len(bench.store.snapshot().leases) == 1


def test_a_failed_commit_is_repeated_with_the_same_events_in_the_next_cycle(make_bench):
    class DeafStore(SqliteStore):
        is_deaf = False
        recorded = 0

        def commit(self, plan, now, expires_at, pending_events=()):
            self.recorded = len(pending_events)
            if self.is_deaf:
                raise StoreUnavailable("a commit", found="no answer", remedy="Wait")
            return super().commit(plan, now, expires_at, pending_events)

    bench = make_bench(DeafStore(), worker=a_worker())
    ids = [bench.hold(name, "gpu:2") for name in "ab"]
    bench.store.is_deaf = True
    bench.beat(times=3)
    assert (bench.started, bench.store.snapshot().pending, bench.store.recorded) == ([], (), 2)
    bench.dispatcher.revoke("a", bench.clock.now())
    bench.store.is_deaf = False
    bench.beat(1)
    assert bench.started == ["b"]
    assert bench.store.request_history("dag", "run", "a").cause == "Airflow revoked it"
    assert [lease.request_id for lease in bench.store.snapshot().leases] == ids[1:]


def test_events_that_the_store_recorded_are_not_sent_again_after_a_failed_cycle(make_bench):
    """Or a task that has ended since would wait again."""

    class AwayAfterTheRace(SqliteStore):
        is_raced = is_away = False

        def commit(self, plan, now, expires_at, pending_events=()):
            if len(plan.places) == 2:
                self.record([RequestSubmitted(a_pending("foreign"))], now)
                super().commit(Plan((a_place("foreign", **{"GPU-1": 1000}),)), now, expires_at)
                self.is_raced = True
            return super().commit(plan, now, expires_at, pending_events)

        def snapshot(self):
            if self.is_away:
                raise StoreUnavailable("the store", found="no answer", remedy="Wait")
            return super().snapshot()

    bench = make_bench(AwayAfterTheRace(), worker=a_worker())
    id_ = bench.hold("a")
    bench.hold("b")
    hand_over = bench.engine.hand_over

    def hand_over_and_go_away(workload, lease, worker):
        hand_over(workload, lease, worker)
        bench.store.is_away = bench.store.is_raced

    bench.engine.hand_over = hand_over_and_go_away
    bench.beat()
    assert (bench.started, bench.store.is_away) == (["a"], True)
    bench.store.is_away = False
    bench.engine.hand_over = hand_over
    bench.tasks.rows[id_] = TaskProcess("success")
    bench.end("a")
    bench.beat(1)
    request_history = bench.store.request_history("dag", "run", "a")
    assert (request_history.state, request_history.cause) == ("ended", "the task ended")


def test_the_history_of_a_request_tells_the_life_of_its_run(make_bench):
    bench = make_bench(SqliteStore(), worker=a_worker())
    id_ = bench.hold("a", "gpu")
    bench.beat()
    bench.tasks.rows[id_] = TaskProcess("success")
    bench.end("a")
    bench.beat(1)
    bench.dispatcher.close()
    steps = bench.store.request_history("dag", "run", "a").transitions
    assert [(step.event, step.phase, step.text) for step in steps] == [
        ("Read", "resolving", ""),
        ("Resolved", "waiting", ""),
        ("Granted", "waiting", ""),
        ("HandedOver", "handed over", ""),
        ("EngineEnded", "ending", "the task ended"),
        ("Looked", "ending", ""),
        ("Freed", "over", ""),
    ]


def test_why_a_waiting_task_was_let_go_is_kept_though_airflow_does_not_want_it_any_more_either(bench):
    bench.hold("first", "gpu:2")
    bench.beat()
    id_ = bench.hold("a")
    bench.beat(1)
    bench.drop("a", "its gang has failed")
    bench.tasks.rows[id_] = TaskProcess("failed")
    bench.beat(60)
    assert bench.store.request_history("dag", "run", "a").cause == "its gang has failed"


def test_a_waiting_task_that_is_dropped_and_held_again_before_the_next_cycle_still_waits(bench):
    bench.hold("first", "gpu:2")
    bench.hold("a", "gpu:2")
    bench.beat()
    bench.dispatcher.revoke("a", bench.clock.now())
    id_ = bench.hold("a", "gpu")
    bench.beat(1)
    (pending,) = bench.store.snapshot().pending
    assert (pending.id, str(pending.request)) == (id_, "1 × gpu")


def test_a_lost_race_leaves_the_rest_of_the_plan_standing(make_bench):
    """Another scheduler takes a device between the decision and the commit."""

    class RacingStore(SqliteStore):
        races = 1

        def commit(self, plan, now, expires_at, pending_events=()):
            if self.races and len(plan.places) == 2:
                self.races = 0
                self.record([RequestSubmitted(a_pending("foreign"))], now)
                super().commit(Plan((a_place("foreign", **{"GPU-1": 1000}),)), now, expires_at)
            return super().commit(plan, now, expires_at, pending_events)

    bench = make_bench(RacingStore(), worker=a_worker())
    bench.hold("a")
    bench.hold("b")
    bench.beat(0.5, times=3)
    assert bench.started == ["a"]
    assert list(bench.queued) == ["b"]


def test_no_more_is_placed_than_the_engine_can_start(bench):
    bench.engine.slots = 1
    bench.hold("a")
    bench.hold("b")
    bench.beat()
    assert bench.started == ["a"]
    assert "a process of the engine" in bench.queued["b"].logged_wait
    bench.beat(1)
    assert bench.started == ["a", "b"]


def test_nothing_is_placed_on_a_worker_that_this_engine_does_not_reach(bench):
    bench.store.record([WorkerSeen(a_worker("elsewhere", devices=(a_device("GPU-9"),)))], EPOCH)
    for name in "abc":
        bench.hold(name)
    bench.beat()
    assert bench.started == ["a", "b"]


def test_a_probe_that_fails_makes_tasks_wait_and_not_fail(make_bench):
    bench = make_bench(worker=a_worker(devices=(a_cpu(),), problems=("nvidia: no answer within 10 s",)))
    bench.hold("a")
    bench.beat()
    assert bench.reports == []
    assert "no answer within 10 s" in bench.queued["a"].logged_wait
    bench.store.record([WorkerSeen(a_worker())], bench.clock.now())
    bench.beat(1)
    assert bench.started == ["a"]


def test_the_problem_of_another_vendor_is_no_reason_to_wait(make_bench):
    bench = make_bench(worker=a_worker(devices=(a_cpu(),), problems=("ascend: no answer within 10 s",)))
    bench.hold("a")
    bench.beat()
    assert len(bench.reports) == 1


def test_devices_that_a_failed_probe_did_not_see_stay_known_but_get_no_task(bench):
    before = a_worker()
    after = a_worker(devices=(a_cpu(),), problems=("nvidia: no answer within 10 s",))
    seen = with_missing_devices(after, before)
    assert [(device.id, device.leasable) for device in seen.devices] == [
        ("cpu", True), ("GPU-0", False), ("GPU-1", False),
    ]  # fmt: skip
    assert "no answer within 10 s" in seen.devices[1].problem
    assert with_missing_devices(a_worker(devices=(a_cpu(),)), before).devices == (a_cpu(),)
    others = a_worker(devices=(a_cpu(),), problems=("amd: no answer within 10 s",))
    assert with_missing_devices(others, before) == others


def test_the_waiting_limit_counts_from_the_first_scheduler_that_held_the_task(make_bench):
    first = make_bench(worker=a_worker())
    first.hold("a", "gpu:2")
    first.hold("b", wait_timeout=30)
    first.beat()
    second = make_bench(first.store)
    second.clock.advance(20)
    second.hold("b", wait_timeout=30)
    second.beat()
    second.beat(11)
    assert [(key, state) for key, state, _ in second.reports] == [("b", "failed")]


def test_a_full_disk_costs_one_warning_and_not_the_loop(bench, caplog):
    def poll():
        raise OSError(28, "No space left on device")

    bench.dispatcher.inventory.poll = poll
    bench.beat(1, times=3)
    assert [r.getMessage() for r in caplog.records if "No space left" in r.getMessage()] == [
        "Deciding: [Errno 28] No space left on device Waiting tasks keep waiting, running ones keep their devices."
    ]


def test_the_policy_learns_from_ended_runs_within_a_minute(bench):
    estimates = []
    decide = bench.policy.decide
    bench.policy.decide = lambda snapshot, now: estimates.append(snapshot.estimates) or decide(snapshot, now)
    bench.hold("a")
    bench.beat()
    id_ = bench.start("b")
    bench.tasks.rows[id_] = TaskProcess("success", 100, "here", bench.clock.now())
    bench.finish("b")
    bench.beat(30)
    bench.beat(40)
    bench.hold("c")
    bench.beat()
    assert estimates[-2].works == {}
    assert estimates[-1].duration_s(("dag", "b"), "nvidia/a100-sxm4-40gb").middle == pytest.approx(30, rel=0.01)


def test_a_task_that_its_engine_can_never_take_fails_with_its_words_and_holds_nothing(bench):
    def refuse(workload, lease, worker):
        raise EngineError("to send a job with 40 devices", found="3000 characters", remedy="Ask for fewer")

    bench.engine.hand_over = refuse
    bench.hold("a")
    bench.beat(1, times=3)
    ((key, state, reason),) = bench.reports
    assert (key, state) == ("a", "failed")
    assert "hetero_airflow can't send a job with 40 devices; found 3000 characters. Ask for fewer." in reason
    snapshot = bench.store.snapshot()
    assert (bench.queued, bench.runs.leased, snapshot.pending, snapshot.leases) == ({}, {}, (), ())


def test_a_task_that_a_quota_of_its_cluster_refuses_is_tried_again_after_growing_pauses(bench):
    quota = "exceeded quota: gpus, requested: count/resourceclaims.resource.k8s.io=1"
    status = LeaseStatus("pod default/a (deleted)", None, TerminationCause(), quota)
    bench.on_a_cluster({})
    bench.engine.cluster.status = lambda id_: status
    bench.hold("a")
    times, seconds = [], 0
    while seconds < 3600:
        bench.beat(5)
        seconds += 5
        times += [seconds] * (len(bench.started) - len(times))
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600, 600], "an hour; one a minute would be 60"
    assert bench.store.request_history("dag", "run", "a", -1).cause == f"its cluster refused it: {quota}"
    assert bench.reports == []
    bench.engine.cluster.status = lambda id_: LeaseStatus()
    bench.engine.in_hand = {bench.queued["a"].request_id}
    bench.beat(600)
    assert len(bench.started) == len(times) + 1


def test_a_scheduler_notes_its_last_decision_every_five_seconds_also_without_work(bench):
    bench.beat(1, times=20)
    (decided_at,) = bench.store.last_decisions().values()
    assert timedelta(0) <= bench.clock.now() - decided_at < timedelta(seconds=6)


def test_a_cycle_that_fails_is_no_decision(bench, monkeypatch):
    bench.beat(1, times=10)
    last_good = bench.clock.now()

    def fail(events):
        raise StoreUnavailable("the store", found="no answer", remedy="Wait")

    monkeypatch.setattr(bench.dispatcher.cycle, "_take_snapshot", fail)
    bench.beat(1, times=20)
    assert list(bench.store.last_decisions().values()) == [last_good]


def test_the_readings_of_a_schedulers_host_are_at_most_ten_seconds_old(bench):
    """A reading says in watts when it was made: here two seconds before it is told. Discovery comes once."""
    inventories = [Inventory(worker=a_worker("worker-a"))]
    begin = bench.clock.now()

    def now_s() -> float:
        return (bench.clock.now() - begin).total_seconds()

    bench.dispatcher.inventory.poll = lambda: inventories.pop() if inventories else None
    bench.dispatcher.inventory.readings = lambda: (Telemetry(device_id="GPU-0", power_w=now_s() - 2),)
    with closing(bench.dispatcher):
        for _ in range(60):
            bench.beat(1)
            assert now_s() - bench.store.telemetry()["worker-a", "GPU-0"].power_w <= 10
