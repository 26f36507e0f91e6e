"""Gangs from the queue to the engine and back: the real store, policy and cycle, and stand-ins for Airflow's parts."""

from datetime import timedelta

import pytest

from hetero_airflow.contract.envelope import read_lease
from hetero_airflow.contract.task_lease import TaskGang
from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.gangs import roster
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.store.store import LeaseMove, WorkerSeen
from hetero_airflow.testing import EPOCH, a_device, a_worker

GANG = "dag.train[0-1] (run)"


class Gang:
    """A mapped task of two instances, each on one GPU, and what Airflow's database says of them."""

    def __init__(self, bench):
        self.bench = bench
        self.ids = {}
        self.notices = []
        bench.tasks.gangs[GANG] = dict.fromkeys((0, 1))
        bench.dispatcher.gangs._notify = lambda lease, cause, now, grace=None: self.notices.append(
            (self.rank(lease.request_id), cause, grace)
        )

    def rank(self, request_id):
        return next(rank for rank, id_ in self.ids.items() if id_ == request_id)

    def queue(self, rank, **arguments):
        self.ids[rank] = self.bench.hold(f"rank-{rank}", task_id="train", map_index=rank, gang=2, **arguments)
        self.set(rank, "queued")

    def set(self, rank, state):
        self.bench.tasks.gangs[GANG][rank] = state
        self.bench.tasks.rows[self.ids[rank]] = TaskProcess(state)

    def run(self):
        """Both run."""
        for rank in (0, 1):
            self.queue(rank)
        self.bench.beat(2)
        for rank in (0, 1):
            self.bench.run(self.ids[rank], 100 + rank)
            self.set(rank, "running")

    def end(self, rank, state):
        """Its process has ended, and its lease is free."""
        self.set(rank, state)
        self.bench.engine.alive.pop(self.bench.lease(self.ids[rank]).id)
        self.bench.end(f"rank-{rank}")

    def leases(self):
        return [read_lease(workload.ti.context_carrier) for workload in self.bench.engine.started]


@pytest.fixture
def gang(bench):
    return Gang(bench)


def waits(bench):
    return {pending.id: pending.gang for pending in bench.store.snapshot().pending}


def reason(bench, id_):
    request_history = bench.store.request_history("dag", "run", "train", 0)
    assert request_history.pending.id == id_
    return request_history.decisions[0]["reason"]


def test_no_rank_starts_before_all_are_queued_and_explain_counts_them(bench, gang):
    gang.queue(0)
    bench.beat(2, times=2)
    assert (bench.started, waits(bench)) == ([], {gang.ids[0]: f"{GANG} #1"})
    assert reason(bench, gang.ids[0])["found"] == "1 of 2 queued"
    gang.queue(1)
    bench.beat(2)
    assert bench.started == ["rank-0", "rank-1"]


def test_each_rank_gets_its_place_all_hosts_and_the_leaders_lease(bench, gang):
    bench.store.record([WorkerSeen(a_worker(labels={"hetero/ifname": "ib0", "nccl/ib_hca": "mlx5"}))], EPOCH)
    gang.run()
    first, second = gang.leases()
    network = {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "=ib0", "HCCL_SOCKET_IFNAME": "=ib0",
               "NCCL_IB_HCA": "mlx5"}  # fmt: skip
    expected = TaskGang(
        name=f"{GANG} #1", rank=0, hosts=("worker-a", "worker-a"), leader=first.id, first_index=0, network=network
    )
    assert (first.gang, second.gang) == (expected, expected.model_copy(update={"rank": 1}))


def test_a_task_without_a_gang_gets_no_gang(bench):
    bench.hold("alone")
    bench.beat()
    assert read_lease(bench.engine.started[0].ti.context_carrier).gang is None


@pytest.mark.parametrize("state", ["failed", "up_for_retry", "up_for_reschedule", None])
def test_where_one_rank_has_ended_otherwise_than_well_the_other_is_stopped_at_once(bench, gang, state):
    gang.run()
    gang.end(1, state)
    bench.beat(2)
    assert gang.notices == [
        (0, f"rank 1 is {state or 'not queued'} of its gang, so that all go on together later", timedelta(0))
    ]
    assert bench.lease(gang.ids[0]).state is LeaseState.PREEMPTED
    bench.beat(2)
    assert len(gang.notices) == 1


def test_where_one_rank_has_ended_well_the_other_goes_on(bench, gang):
    gang.run()
    gang.end(1, "success")
    bench.beat(2)
    assert gang.notices == []


def test_a_rank_that_came_back_waits_until_the_others_have_stopped_and_all_start_together(bench, gang):
    gang.run()
    gang.end(1, "up_for_reschedule")
    bench.beat(0.5)
    gang.queue(1)
    bench.beat(2)
    assert waits(bench) == {gang.ids[1]: f"{GANG} #2"}
    assert [(rank, grace) for rank, _, grace in gang.notices] == [(0, timedelta(0))]
    assert bench.started == ["rank-0", "rank-1"]
    gang.end(0, "up_for_reschedule")
    bench.beat(2)
    gang.queue(0)
    bench.beat(2)
    assert bench.started == ["rank-0", "rank-1", "rank-0", "rank-1"]
    assert [lease.gang.name for lease in gang.leases()[2:]] == [f"{GANG} #2"] * 2


def test_where_one_rank_has_to_give_its_devices_back_the_other_has_the_time_to_save_too(bench, gang):
    gang.run()
    lease = bench.lease(gang.ids[1])
    bench.store.move([LeaseMove(lease.id, lease.token, LeaseState.PREEMPTED, "moved")], bench.clock.now())
    bench.beat(2)
    assert (0, "another rank of its gang has to give its devices back", None) in gang.notices


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed"])
def test_members_that_wait_for_a_failed_rank_fail_with_a_remedy(bench, gang, state):
    gang.queue(0)
    gang.ids[1] = "00000000-0000-0000-0000-000000000001"
    gang.set(1, state)
    bench.beat(2, times=2)
    ((key, outcome, text),) = bench.reports
    assert (key, outcome) == ("rank-0", "failed")
    assert text == (f"Gang of 2: rank 1 is {state}, and does not run again by itself. Clear all 2 ranks together.")
    assert (waits(bench), bench.started) == ({}, [])


@pytest.mark.parametrize("state", ["up_for_retry", "scheduled", None])
def test_members_wait_for_a_rank_that_will_come_and_their_logs_name_it_once(bench, gang, state, monkeypatch):
    logged = []
    monkeypatch.setattr(roster, "write_task_log", lambda path, text, now: logged.append(text))
    gang.queue(0)
    gang.ids[1] = "00000000-0000-0000-0000-000000000001"
    gang.set(1, state)
    bench.beat(2, times=2)
    assert (bench.reports, bench.started) == ([], [])
    (text,) = logged
    assert text.startswith(f"Waiting for its gang: rank 1 is {state or 'not queued'}")
    assert ("max_active_tasks" in text) == (state == "scheduled")


def test_a_task_with_too_few_instances_for_its_gang_fails(bench, gang):
    del bench.tasks.gangs[GANG][1]
    gang.queue(0)
    bench.beat(2, times=2)
    assert bench.reports[0][1] == "failed"
    assert "the task has 1 instances from 0 on" in bench.reports[0][2]


def test_a_rank_that_is_dropped_leaves_the_others_waiting(bench, gang):
    for rank in (0, 1):
        gang.queue(rank)
    bench.dispatcher.revoke("rank-1", bench.clock.now())
    bench.beat(2)
    assert (bench.started, list(bench.queued)) == ([], ["rank-0"])


def test_two_gangs_of_one_task_do_not_mix(bench):
    bench.store.record(
        [WorkerSeen(a_worker(devices=tuple(a_device(f"GPU-{number}", index=number) for number in range(4))))], EPOCH
    )
    for index in (0, 3):
        bench.hold(f"rank-{index}", task_id="train", map_index=index, gang=2)
    bench.tasks.gangs |= {GANG: {0: "queued", 1: None}, "dag.train[2-3] (run)": {0: None, 1: "queued"}}
    bench.beat(2)
    assert sorted(waits(bench).values()) == [f"{GANG} #1", "dag.train[2-3] (run) #1"]
    bench.hold("rank-1", task_id="train", map_index=1, gang=2)
    bench.beat(2)
    assert bench.started == ["rank-0", "rank-1"]


def two_schedulers(make_bench):
    first = make_bench(worker=a_worker())
    second = make_bench(first.store)
    second.tasks.rows, second.tasks.gangs = first.tasks.rows, first.tasks.gangs
    first.tasks.gangs[GANG] = dict.fromkeys((0, 1), "queued")
    for rank, bench in enumerate((first, second)):
        bench.hold(f"rank-{rank}", task_id="train", map_index=rank, gang=2)
    return first, second


@pytest.mark.parametrize("is_first", [True, False])
def test_a_gang_whose_members_airflow_gave_to_two_schedulers_starts_with_both(make_bench, is_first):
    benches = two_schedulers(make_bench)
    for _ in range(3):
        for bench in benches if is_first else reversed(benches):
            bench.beat(1)
    assert [bench.started for bench in benches] == [["rank-0"], ["rank-1"]]
    gangs = [read_lease(bench.engine.started[0].ti.context_carrier).gang for bench in benches]
    assert [(gang.name, gang.rank, gang.leader) for gang in gangs] == [
        (f"{GANG} #1", rank, gangs[0].leader) for rank in (0, 1)
    ]
    assert len(benches[0].store.snapshot().leases) == 2


def test_a_lease_whose_gang_is_not_whole_is_not_used(make_bench):
    """Another scheduler may be about to take it back: a member of its gang was refused."""
    first, second = two_schedulers(make_bench)
    for bench in (second, first, second):
        if not first.started:
            bench.beat(1)
    placed, waiting = (first, second) if first.started else (second, first)
    lease = first.lease(str(placed.engine.started[0].ti.id))
    first.store.move([LeaseMove(lease.id, lease.token, LeaseState.EVICTED, "gone")], first.clock.now())
    waiting.beat(1)
    assert waiting.started == []


class ElasticGang:
    """Three ranks, two of which may go on without the third, on a worker with so many GPUs."""

    name = "dag.train[0-2] (run)"

    def __init__(self, bench, gpus):
        devices = tuple(a_device(f"GPU-{number}", index=number) for number in range(gpus))
        bench.store.record([WorkerSeen(a_worker(devices=devices))], EPOCH)
        self.bench = bench
        bench.tasks.gangs[self.name] = dict.fromkeys(range(3))

    def queue(self, *ranks):
        for rank in ranks:
            id_ = self.bench.hold(f"rank-{rank}", task_id="train", map_index=rank, gang="2:3@30s")
            self.bench.tasks.gangs[self.name][rank] = "queued"
            yield id_

    def end(self, rank, id_, state):
        self.bench.tasks.gangs[self.name][rank] = state
        self.bench.tasks.rows[id_] = TaskProcess(state)
        self.bench.engine.alive.pop(self.bench.lease(id_).id)
        self.bench.end(f"rank-{rank}")

    def occupy_one(self):
        id_ = self.bench.hold("other")
        self.bench.beat(1)
        self.bench.run(id_)

    def start_two(self):
        """The ids of all three; the first two run."""
        self.occupy_one()
        ids = list(self.queue(0, 1, 2))
        self.bench.beat(2, times=17)
        for rank in (0, 1):
            self.bench.run(ids[rank], 100 + rank)
            self.bench.tasks.gangs[self.name][rank] = "running"
        return ids


def test_fewer_ranks_go_on_where_all_of_them_have_waited_long_enough(make_bench, monkeypatch):
    logged = []
    monkeypatch.setattr(roster, "write_task_log", lambda path, text, now: logged.append(text))
    bench = make_bench()
    gang = ElasticGang(bench, 3)
    gang.occupy_one()
    list(gang.queue(0, 1, 2))
    bench.beat(2, times=14)
    assert (bench.started, set(waits(bench).values())) == (["other"], {f"{gang.name} #1"})
    bench.beat(2, times=3)
    assert (bench.started, list(bench.queued), waits(bench)) == (
        ["other", "rank-0", "rank-1"],
        ["rank-2"],
        {},
    )
    carried = read_lease(bench.engine.started[1].ti.context_carrier).gang
    assert (carried.name, carried.size) == (f"{gang.name} #1 with 2 of 3", 2)
    bench.beat(2)
    assert (logged, waits(bench)) == (["Its gang runs with 2 of 3 ranks, without this one"], {})


def test_no_gang_starts_without_a_rank_that_is_not_queued_yet(make_bench):
    bench = make_bench()
    gang = ElasticGang(bench, 3)
    list(gang.queue(0, 1))
    bench.beat(2, times=40)
    assert bench.started == []


def test_a_rank_that_was_left_out_is_done_when_the_others_have_ended_well(make_bench):
    bench = make_bench()
    gang = ElasticGang(bench, 3)
    ids = gang.start_two()
    gang.end(0, ids[0], "success")
    bench.beat(2)
    assert (bench.tasks.finished, list(bench.queued)) == ([], ["rank-2"])
    gang.end(1, ids[1], "success")
    bench.beat(1)
    bench.beat(2)
    assert (bench.tasks.finished, bench.queued, waits(bench), bench.reports) == ([ids[2]], {}, {}, [])


def test_a_rank_that_was_left_out_is_included_when_the_gang_is_placed_again(make_bench):
    bench = make_bench()
    gang = ElasticGang(bench, 3)
    ids = gang.start_two()
    for rank in (0, 1):
        gang.end(rank, ids[rank], "up_for_reschedule")
    bench.beat(1)
    list(gang.queue(0, 1))
    bench.beat(2, times=3)
    assert set(waits(bench).values()) == {f"{gang.name} #1"}
    assert len(waits(bench)) == 3
    bench.end("other")
    bench.engine.alive.clear()
    bench.beat(2, times=2)
    assert bench.started[3:] == ["rank-0", "rank-1", "rank-2"]


def test_an_elastic_gang_for_which_there_is_never_room_comes_down_at_once(make_bench):
    bench = make_bench()
    gang = ElasticGang(bench, 2)
    list(gang.queue(0, 1, 2))
    bench.beat(2, times=2)
    assert (bench.started, bench.reports) == (["rank-0", "rank-1"], [])


def test_a_gang_for_which_there_is_never_room_even_with_the_least_fails(make_bench):
    bench = make_bench()
    gang = ElasticGang(bench, 1)
    list(gang.queue(0, 1, 2))
    bench.beat(2, times=2)
    assert {state for _, state, _ in bench.reports} == {"failed"}
    assert bench.started == []
