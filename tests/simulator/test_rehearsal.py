from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.planned_tasks import PlannedTask, RehearsalNote
from hetero_airflow.simulator.rehearsal import rehearse
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker
from tests.benchmarks.baselines import Heft
from tests.policies.every_policy import EVERY_POLICY

A100 = "nvidia/a100-sxm4-40gb"
GPU, GPUS = DeviceRequest.parse("gpu"), DeviceRequest.parse("gpu:2")
NOW = EPOCH + timedelta(seconds=100)
KNOWN = Estimates(
    {("dag", "train"): {A100: 1.0}, ("other", "long"): {A100: 2.0}},
    {("dag", "train"): Interval(50, 60, 90), ("other", "long"): Interval(360, 400, 600)},
)


def a_snapshot(*, running: bool = True, waiting: bool = False) -> Snapshot:
    """Two A100. One task has held one of them for 100 s of its known 200 s."""
    store = MemoryStore()
    store.record([WorkerSeen(a_worker())], EPOCH)
    if running:
        store.record([RequestSubmitted(a_pending("r1", dag_id="other", task_id="long"))], EPOCH)
        store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, NOW)
    if waiting:
        store.record([RequestSubmitted(a_pending("r2", "gpu:2", 50, dag_id="other", task_id="long"))], NOW)
    return replace(store.snapshot(), estimates=KNOWN)


def test_tasks_run_in_their_order_after_present_tasks():
    tasks = [
        PlannedTask("fetch", ("dag", "fetch"), None, duration_s=Interval(5, 10, 20)),
        PlannedTask("train", ("dag", "train"), GPUS, after=("fetch",)),
        PlannedTask("tell", ("dag", "tell"), None, after=("train",), duration_s=Interval(1, 1, 1)),
    ]
    rehearsal = rehearse(a_snapshot(), tasks, Fifo(), NOW)
    fetch, train, tell = rehearsal.tasks
    assert (fetch.start_s, fetch.end_s) == ((0, 0, 0), (5, 10, 20))
    assert train.ready_s == (5, 10, 20)
    assert train.start_s == pytest.approx((80, 100, 200))
    assert train.end_s == pytest.approx((130, 160, 290))
    assert (train.worker_id, train.device_class, train.is_assumed) == ("worker-a", A100, False)
    assert train.wait_s == pytest.approx(90)
    assert tell.end_s == rehearsal.end_s == pytest.approx((131, 161, 291))
    assert (rehearsal.problems, rehearsal.other_tasks) == ((), 1)


def test_a_policy_knows_what_comes_after_what():
    """The last of three tasks for one device goes first, since another task waits for it."""
    names = ("a", "b", "c")
    tasks = [PlannedTask(name, ("dag", name), GPU) for name in names]
    tasks.append(PlannedTask("end", ("dag", "end"), GPU, after=("c",)))
    works = {("dag", name): Interval(10, 10, 10) for name in (*names, "end")}
    known = Estimates({name: {A100: 1.0} for name in works} | KNOWN.speeds, works | KNOWN.works)
    snapshot = replace(a_snapshot(), estimates=known)
    started = {policy: [task.id for task in rehearse(snapshot, tasks, policy(), NOW).tasks] for policy in (Fifo, Heft)}
    assert (started[Fifo][0], started[Heft][0]) == ("a", "c")


def test_waiting_requests_keep_their_place():
    tasks = [PlannedTask("train", ("dag", "train"), GPUS)]
    rehearsal = rehearse(a_snapshot(waiting=True), tasks, Fifo(), NOW)
    assert rehearsal.tasks[0].start_s.middle == pytest.approx(100 + 200)


def test_times_count_from_the_start_of_the_run():
    tasks = [PlannedTask("train", ("dag", "train"), GPUS)]
    rehearsal = rehearse(a_snapshot(), tasks, Fifo(), NOW, starts_in_s=70)
    assert rehearsal.tasks[0].start_s == pytest.approx((10, 30, 130))


def test_an_unknown_duration_is_assumed_and_marked():
    tasks = [PlannedTask("train", ("dag", "new"), GPU), PlannedTask("fetch", ("dag", "fetch"), None)]
    rehearsed = {task.id: task for task in rehearse(a_snapshot(running=False), tasks, Fifo(), NOW, assumed_s=7).tasks}
    assert [(rehearsed[name].end_s.middle, rehearsed[name].is_assumed) for name in ("train", "fetch")] == [
        (7, True),
        (7, True),
    ]


def test_each_problem_is_reported():
    hasty = DeviceRequest.parse("gpu:2", wait_timeout="1m")
    tasks = [
        PlannedTask("huge", ("dag", "huge"), DeviceRequest.parse("h100:8")),
        PlannedTask("after", ("dag", "after"), None, after=("huge",)),
        PlannedTask("hasty", ("dag", "train"), hasty),
        PlannedTask("short", ("dag", "train"), GPUS, limit_s=30),
    ]
    rehearsal = rehearse(a_snapshot(), tasks, Fifo(), NOW, deadline_s=120)
    assert {problem.id for problem in rehearsal.problems} == {"huge", "after", "hasty", "short"}
    impossible = "no known worker could ever run 8 × nvidia/h100: model: asked nvidia/h100, found nvidia/a100-sxm4-40gb"
    assert RehearsalNote("huge", impossible) in rehearsal.problems
    assert RehearsalNote("after", "comes after huge, which would not end well") in rehearsal.problems
    assert RehearsalNote("hasty", "waits 100 s for 2 × gpu, longer than its 60 s") in rehearsal.problems
    assert RehearsalNote("short", "ends the run after 220 s, later than 120 s") in rehearsal.problems
    assert RehearsalNote("short", "runs 60 s, longer than its execution_timeout of 30 s") in rehearsal.problems
    assert [task.id for task in rehearsal.tasks] == ["hasty", "short"]


def test_a_planned_task_may_have_the_id_of_a_present_request():
    tasks = [PlannedTask("r1", ("dag", "train"), GPU)]
    assert [task.id for task in rehearse(a_snapshot(), tasks, Fifo(), NOW).tasks] == ["r1"]


def test_a_run_that_exceeds_its_estimate_is_assumed_to_go_on():
    tasks = [PlannedTask("train", ("dag", "train"), GPUS)]
    rehearsal = rehearse(a_snapshot(), tasks, Fifo(), NOW + timedelta(days=9), assumed_s=50)
    assert rehearsal.tasks[0].start_s == (50, 50, 50)


def a_gang(size: int, device: str = "gpu:2", *, least: int = 0, instances: int = 0, **fields) -> list[PlannedTask]:
    request = DeviceRequest.parse(device)
    return [
        PlannedTask(f"fit[{n}]", ("dag", "fit"), request, gang="g", gang_size=size, least=least or size, **fields)
        for n in range(instances or size)
    ]


def on_workers(number: int) -> Snapshot:
    """A snapshot of idle workers with two A100 each."""
    return Snapshot(1, tuple(a_worker(f"worker-{n}") for n in range(number)))


def test_the_ranks_of_a_gang_start_together_though_there_is_room_for_some_at_once():
    before = [
        PlannedTask("early", ("dag", "early"), None, duration_s=Interval(5, 5, 5)),
        *(replace(rank, after=("early",)) for rank in a_gang(2, "gpu")),
    ]
    ranks = [task for task in rehearse(a_snapshot(), before, Fifo(), NOW, assumed_s=10).tasks if task.request]
    assert [(rank.id, rank.worker_id) for rank in ranks] == [("fit[0]", "worker-a"), ("fit[1]", "worker-a")]
    for rank in ranks:
        assert (rank.ready_s, rank.start_s) == ((5, 5, 5), pytest.approx((80, 100, 200)))


def test_each_rank_is_reported_with_its_worker():
    rehearsal = rehearse(on_workers(3), a_gang(2), Fifo(), NOW)
    assert [(rank.id, rank.worker_id) for rank in rehearsal.tasks] == [("fit[0]", "worker-0"), ("fit[1]", "worker-1")]
    assert (rehearsal.problems, rehearsal.notes) == ((), ())


def test_the_ranks_of_a_gang_keep_their_devices_until_the_slowest_is_done():
    slow = a_worker("slow", devices=(a_cpu(), a_device("GPU-0", model="t4"), a_device("GPU-1", model="t4", index=1)))
    known = Estimates({("dag", "fit"): {A100: 1.0, "nvidia/t4": 0.1}}, {("dag", "fit"): Interval(60, 60, 60)})
    after = PlannedTask("after", ("dag", "after"), GPU, after=("fit[0]",))
    snapshot = Snapshot(1, (a_worker("fast"), slow), estimates=known)
    ranks = rehearse(snapshot, [*a_gang(2), after], Fifo(), NOW).tasks
    assert {rank.worker_id for rank in ranks[:2]} == {"fast", "slow"}
    assert [rank.start_s.middle for rank in ranks] == [0, 0, 600]
    assert [rank.end_s.middle for rank in ranks[:2]] == [600, 600]


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_every_policy_places_a_gang_that_fits(policy):
    rehearsal = rehearse(on_workers(3), a_gang(3), EVERY_POLICY[policy](), NOW)
    assert (len(rehearsal.tasks), rehearsal.end_s.middle, rehearsal.problems) == (3, 600, ())


def test_a_gang_that_can_never_be_placed_is_a_problem_with_the_reason():
    tasks = [*a_gang(3), PlannedTask("after", ("dag", "after"), None, after=("fit[0]", "fit[1]", "fit[2]"))]
    rehearsal = rehearse(on_workers(2), tasks, Fifo(), NOW)
    text = (
        "its gang of 3 can't be placed: count: asked all 3 of gang g, 2 × gpu each, "
        "found room for 2 at the same time, even when all workers are idle"
    )
    assert rehearsal.problems == (
        *(RehearsalNote(f"fit[{n}]", text) for n in range(3)),
        RehearsalNote("after", "comes after fit[0], which would not end well"),
    )
    assert rehearsal.tasks == ()
    (problem, _) = rehearse(on_workers(2), a_gang(2, "h100"), Fifo(), NOW).problems
    assert problem.text == (
        "its gang of 2 can't be placed: model: asked nvidia/h100, found nvidia/a100-sxm4-40gb (worker worker-0)"
    )


def test_an_elastic_gang_is_rehearsed_with_the_most_ranks_that_fit():
    tasks = [*a_gang(4, least=2), PlannedTask("after", ("dag", "after"), None, after=("fit[2]", "fit[3]"))]
    rehearsal = rehearse(on_workers(3), tasks, Fifo(), NOW)
    assert [task.id for task in rehearsal.tasks] == ["fit[0]", "fit[1]", "fit[2]", "after"]
    assert rehearsal.tasks[-1].start_s.middle == 600
    text = (
        "its gang is planned with 3 of 4 ranks: count: asked all 4 of gang g, 2 × gpu each, "
        "found room for 3 at the same time, even when all workers are idle"
    )
    assert (rehearsal.notes, rehearsal.problems) == ((RehearsalNote("fit[0]", text),), ())
    (problem, *_) = rehearse(on_workers(1), tasks, Fifo(), NOW).problems
    assert problem.text.startswith("its gang of 2 to 4 can't be placed: count: asked all 4 of gang g, 2 × gpu each")


def test_a_gang_that_lacks_an_instance_is_never_placed_even_if_it_is_elastic():
    rehearsal = rehearse(on_workers(3), a_gang(3, least=2, instances=2), Fifo(), NOW)
    assert [problem.text for problem in rehearsal.problems] == [
        "its gang of 2 to 3 can't be placed: gang: asked all 3 members of gang g, found 2 of 3 queued"
    ] * 2


def test_an_unknown_number_of_instances_is_noted():
    alone = [PlannedTask("one[0]", ("dag", "one"), GPU, is_count_known=False)]
    rehearsal = rehearse(on_workers(2), [*alone, *a_gang(2, is_count_known=False)], Fifo(), NOW)
    assert rehearsal.notes == (
        RehearsalNote("one[0]", "how many instances there are is known only in the run; one is planned"),
        RehearsalNote("fit[0]", "how many instances there are is known only in the run; one gang of 2 is planned"),
    )


@pytest.mark.parametrize(("members", "start_s"), [(2, 100 + 200), (1, 0)])
def test_a_waiting_gang_starts_as_a_whole_and_holds_nothing_before(members, start_s):
    ranks = [a_pending(f"w{n}", at_s=50, dag_id="other", task_id="long", gang="w", gang_size=2) for n in range(members)]
    snapshot = replace(a_snapshot(), pending=tuple(ranks))
    train = rehearse(snapshot, [PlannedTask("train", ("dag", "train"), GPU)], Fifo(), NOW).tasks[0]
    assert train.start_s.middle == pytest.approx(start_s)
