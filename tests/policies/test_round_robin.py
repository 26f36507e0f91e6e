from dataclasses import replace

from hetero_airflow.model.plan import Plan, Wait
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.policies.round_robin import RoundRobin
from hetero_airflow.testing import EPOCH, FakeClock, a_cpu, a_device, a_pending, a_worker
from tests.policies.plans import order

ONE_GPU = a_worker("a", (a_cpu(), a_device("GPU-0")))


def test_dags_take_turns_and_the_one_never_served_is_first() -> None:
    pending = (
        a_pending("x1", "gpu", dag_id="x"),
        a_pending("x2", "gpu", at_s=1, dag_id="x"),
        a_pending("y1", "gpu", at_s=2, dag_id="y"),
        a_pending("y2", "gpu", at_s=3, dag_id="y"),
        a_pending("z1", "gpu", at_s=4, dag_id="z"),
    )
    snapshot = Snapshot(1, (ONE_GPU,), {}, pending, dag_tokens={"x": 7, "y": 3})
    assert order(RoundRobin().decide(snapshot, EPOCH)) == ["z1", "y1", "x1", "y2", "x2"]


def test_one_device_goes_from_dag_to_dag() -> None:
    pending = tuple(
        a_pending(f"{dag}{number}", "gpu", at_s=10 * (dag == "y") + number, dag_id=dag)
        for dag in "xy"
        for number in (1, 2)
    )
    tokens: dict[str, int] = {}
    started = []
    for token in range(1, 5):
        plan = RoundRobin().decide(Snapshot(token, (ONE_GPU,), {}, pending, dag_tokens=tokens), EPOCH)
        [place] = plan.places
        request = next(candidate for candidate in pending if candidate.id == place.request_id)
        pending = tuple(candidate for candidate in pending if candidate is not request)
        tokens = tokens | {request.dag_id: token}
        started.append(request.id)
    assert started == ["x1", "y1", "x2", "y2"]


def test_workers_then_devices_take_turns() -> None:
    workers = (a_worker("a"), a_worker("b"))
    clock = FakeClock()
    usage: dict[tuple[str, str], DeviceUsage] = {}
    taken = []
    for number in range(5):
        pending = (a_pending(f"r{number}", "gpu"),)
        [place] = RoundRobin().decide(Snapshot(number, workers, usage, pending), clock.now()).places
        taken.append((place.worker_id, place.claims[0].device_id))
        usage = usage | {taken[-1]: DeviceUsage(0, 0, clock.now())}
        clock.advance(1)
    assert taken == [("a", "GPU-0"), ("b", "GPU-0"), ("a", "GPU-1"), ("b", "GPU-1"), ("a", "GPU-0")]


def test_within_one_plan_workers_take_turns_too() -> None:
    pending = tuple(a_pending(f"r{number}", "gpu", at_s=number) for number in range(4))
    plan = RoundRobin().decide(Snapshot(1, (a_worker("a"), a_worker("b")), {}, pending), EPOCH)
    assert [place.worker_id for place in plan.places] == ["a", "b", "a", "b"]


def test_a_dag_does_not_use_up_the_turn_of_its_own_head() -> None:
    pending = (
        a_pending("x-big", "gpu:2", dag_id="x"),
        a_pending("y1", "cpu", at_s=1, dag_id="y"),
        a_pending("x-small", "cpu", at_s=2, dag_id="x"),
    )
    usage = {("worker-a", "GPU-0"): DeviceUsage(1000, 40 * 2**30, EPOCH)}
    plan = RoundRobin().decide(Snapshot(1, (a_worker(),), usage, pending), EPOCH)
    assert [place.request_id for place in plan.places] == ["y1"]
    assert [(d.request_id, d.position, str(d.reason)) for d in plan.decisions if isinstance(d, Wait)] == [
        ("x-big", 1, "busy: asked 2 × gpu, found 1 of 2 free (worker worker-a)"),
        ("x-small", 2, "reserved: asked 1 × cpu, found x-big ahead in the queue"),
    ]


def test_a_head_stays_the_head_until_it_is_placed() -> None:
    def decide(tokens: dict[str, int], pending: tuple[PendingRequest, ...], free: bool = False) -> Plan:
        usage = {} if free else {("worker-a", "GPU-0"): DeviceUsage(1000, 40 * 2**30, EPOCH)}
        return RoundRobin().decide(Snapshot(1, (a_worker(),), usage, pending, dag_tokens=tokens), EPOCH)

    head = a_pending("x1", "gpu:2", at_s=5, dag_id="x")
    pending = tuple(a_pending(f"y{n}", "cpu:8", at_s=n, dag_id="y") for n in range(3))
    first = decide({"x": 1, "y": 2}, (head, *pending))
    assert order(first)[0] == "x1"
    assert [place.request_id for place in first.places] == ["y0"]
    later = decide({"x": 1, "y": 3}, (head, *pending[1:], replace(pending[0], id="y9")))
    assert order(later)[0] == "x1"
    assert decide({"x": 1, "y": 3}, (head, *pending[1:]), free=True).places[0].request_id == "x1"
