from collections import Counter
from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_airflow.matching.gangs.placement import gang_level
from hetero_airflow.model.plan import Place, Plan, ReasonCode, Refuse, Wait
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.scheduling.validation import plan_faults
from hetero_airflow.testing import EPOCH, a_device, a_pending, a_worker, requests, workers
from tests.effort import effort
from tests.policies.every_policy import make, rows
from tests.policies.plans import order

GIB = 2**30
FULL = DeviceUsage(1000, 40 * GIB)


def a_gang(
    name: str, members: int, device: object = "gpu", at_s: float = 0, size: int = 0, **fields: object
) -> list[PendingRequest]:
    gang_fields = {"gang": name, "gang_size": size or members, **fields}
    return [a_pending(f"{name}{number}", device, at_s=at_s, **gang_fields) for number in range(members)]  # type: ignore[arg-type]


def decide(
    hosts: list[Worker], pending: list[PendingRequest], full: tuple[str, ...] = (), after_s: float = 0, **parts: object
) -> Plan:
    """FIFO's plan; `full` names devices as worker/device."""
    usage = {tuple(text.split("/")): FULL for text in full}
    snapshot = Snapshot(1, tuple(hosts), usage, tuple(pending), **parts)  # type: ignore[arg-type]
    plan = Fifo().decide(snapshot, EPOCH + timedelta(seconds=after_s))
    assert plan_faults(snapshot, plan) == []
    return plan


def outcomes(plan: Plan) -> dict[str, str]:
    return {
        d.request_id: d.worker_id if isinstance(d, Place) else str(d.reason.code) if isinstance(d, Wait) else "refused"
        for d in plan.decisions
    }


def reason(plan: Plan, request_id: str) -> str:
    return next(str(d.reason) for d in plan.decisions if not isinstance(d, Place) and d.request_id == request_id)


AB = [a_worker("a"), a_worker("b")]


def test_a_gang_is_placed_whole() -> None:
    plan = decide(AB, a_gang("g", 2, "gpu:2"))
    assert outcomes(plan) == {"g0": "a", "g1": "b"}
    assert plan.places[0].account.summary == "placed with gang g of 2 on 2 workers, joined by 3.12 GB/s (site)"


def test_a_gang_that_does_not_fit_takes_nothing_and_reserves_what_it_needs() -> None:
    plan = decide(AB, [*a_gang("g", 2, "gpu:2"), a_pending("later", "gpu", at_s=1)], full=("a/GPU-0",))
    assert outcomes(plan) == {"g0": "busy", "g1": "busy", "later": "reserved"}
    assert reason(plan, "g1") == "busy: asked all 2 of gang g, 2 × gpu each, found room for 1 at the same time"


def test_members_stand_together_where_the_first_of_them_stands() -> None:
    first, second = a_gang("g", 2, "gpu")
    between = a_pending("between", "gpu:2", at_s=1)
    second = replace(second, submitted_at=EPOCH + timedelta(seconds=2))
    plan = decide([a_worker("a")], [first, between, second])
    assert order(plan) == ["g0", "g1", "between"]
    assert outcomes(plan) == {"g0": "a", "g1": "a", "between": "busy"}


def test_an_incomplete_gang_says_what_is_missing_and_reserves_nothing() -> None:
    plan = decide(AB, [*a_gang("g", 2, "gpu:2", size=3), a_pending("later", "gpu:2", at_s=1)])
    assert outcomes(plan) == {"later": "a", "g0": "gang", "g1": "gang"}
    assert reason(plan, "g0") == "gang: asked all 3 members of gang g, found 2 of 3 queued"


def test_a_returning_member_joins_the_running_ones() -> None:
    first, second = a_gang("g", 2, "gpu")
    assert outcomes(decide(AB, [second], full=("a/GPU-0",), holders={"g0": first})) == {"g1": "a"}


def test_two_gangs_never_hold_half_of_each_others_devices() -> None:
    hosts = [a_worker("a"), a_worker("b"), a_worker("c")]
    plan = decide(hosts, [*a_gang("g", 2, "gpu:2"), *a_gang("h", 2, "gpu:2", at_s=1)])
    assert outcomes(plan) == {"g0": "a", "g1": "b", "h0": "busy", "h1": "busy"}


def test_a_gang_that_never_fits_is_refused_and_blocks_nothing() -> None:
    plan = decide(AB, [*a_gang("g", 3, "gpu:2"), a_pending("later", "gpu:2", at_s=1)])
    assert outcomes(plan) == {"later": "a", "g0": "refused", "g1": "refused", "g2": "refused"}
    [refused] = [d for d in plan.decisions if isinstance(d, Refuse) and d.request_id == "g0"]
    assert str(refused.reason) == (
        "count: asked all 3 of gang g, 2 × gpu each, found room for 2 at the same time, even when all workers are idle"
    )


def test_a_gang_that_fits_only_with_a_lost_worker_waits_and_blocks_nothing() -> None:
    hosts = [a_worker("a"), a_worker("b", state=WorkerState.LOST)]
    plan = decide(hosts, [*a_gang("g", 2, "gpu:2"), a_pending("later", "gpu:2", at_s=1)])
    assert outcomes(plan) == {"later": "a", "g0": "gang", "g1": "gang"}


def test_one_impossible_member_refuses_its_gang() -> None:
    pending = [*a_gang("g", 1, "gpu", size=2), replace(a_pending("g-bad", "h100"), gang="g", gang_size=2)]
    assert outcomes(decide(AB, pending)) == {"g0": "refused", "g-bad": "refused"}


def test_a_rack_demand_is_hard_for_ever_or_for_its_budget() -> None:
    hosts = [a_worker(name, labels={"hetero/rack": rack}) for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"))]
    full = ("a/GPU-0",)
    assert outcomes(decide(hosts, a_gang("g", 2, "gpu:2", topology="rack"), full)) == {
        "g0": "scattered",
        "g1": "scattered",
    }
    soft = a_gang("g", 2, "gpu:2", topology="rack@10m")
    plan = decide(hosts, soft, full, after_s=599)
    assert outcomes(plan) == {"g0": "scattered", "g1": "scattered"}
    assert plan.until == EPOCH + timedelta(seconds=600)
    assert reason(plan, "g0") == (
        "scattered: asked all 2 of gang g, 2 × gpu (topology=rack) each, found room for 1 at the same time that "
        "close together; after 2026-01-01 00:10:00 UTC it takes any free devices"
    )
    plan = decide(hosts, soft, full, after_s=600)
    assert (outcomes(plan), plan.until) == ({"g0": "b", "g1": "c"}, None)


def test_no_gang_waits_for_a_rack_that_even_an_idle_cluster_lacks() -> None:
    assert outcomes(decide(AB, a_gang("g", 2, "gpu:2", topology="rack@10m"))) == {"g0": "a", "g1": "b"}
    plan = decide(AB, a_gang("g", 2, "gpu:2", topology="rack"))
    assert reason(plan, "g0").startswith(
        "topology: asked all 2 of gang g, 2 × gpu (topology=rack) each, found room for 1"
    )


LINKED = a_worker(
    "a",
    tuple(a_device(f"GPU-{n}", index=n, peers=(f"GPU-{n ^ 1}",)) for n in range(4)),
)


def test_a_request_waits_for_links_while_its_budget_lasts() -> None:
    soft = a_pending("r", "gpu:2", topology="nvlink@10m")
    full = ("a/GPU-0", "a/GPU-2")
    plan = decide([LINKED], [soft], full, after_s=1)
    assert reason(plan, "r") == (
        "scattered: asked 2 × gpu (topology=nvlink), found 2 free, at most 1 joined by nvlink (worker a); "
        "after 2026-01-01 00:10:00 UTC it takes any free devices"
    )
    assert plan.until == EPOCH + timedelta(minutes=10)
    assert outcomes(decide([LINKED], [soft], full, after_s=600)) == {"r": "a"}
    assert outcomes(decide([LINKED], [soft], ("a/GPU-0",), after_s=1)) == {"r": "a"}


def test_no_request_waits_for_links_that_no_worker_has() -> None:
    assert outcomes(decide([a_worker("a")], [a_pending("r", "gpu:2", topology="nvlink@10m")])) == {"r": "a"}
    assert outcomes(decide([a_worker("a")], [a_pending("r", "gpu:2", topology="nvlink")])) == {"r": "refused"}


def test_another_alternative_is_taken_while_the_links_of_the_first_are_busy() -> None:
    t4 = a_worker("b", (a_device("GPU-9", "t4", "16GiB"),))
    wanted = [{"device": "a100:2", "topology": "nvlink@10m"}, "t4"]
    plan = decide([LINKED, t4], [a_pending("r", wanted)], ("a/GPU-0", "a/GPU-2"), after_s=1)
    assert outcomes(plan) == {"r": "b"}


def test_the_account_states_what_joins_a_gang() -> None:
    plan = decide(AB, a_gang("g", 2, "gpu:2"))
    assert plan.places[0].account.summary.endswith("joined by 3.12 GB/s (site)")
    plan = decide([a_worker("a")], a_gang("g", 2, "gpu"))
    assert plan.places[0].account.summary == "placed with gang g of 2 on 1 worker, joined by 15.8 GB/s (numa)"


def test_shares_are_reserved_for_all_members_of_a_gang_on_one_device() -> None:
    host = a_worker("a", (a_device("GPU-0"),))
    usage = {("a", "GPU-0"): DeviceUsage(250, 10 * GIB)}
    gang = a_gang("g", 2, "gpu:0.5")
    snapshot = Snapshot(1, (host,), usage, (*gang, a_pending("later", "gpu:0.25", at_s=1)))
    assert outcomes(Fifo().decide(snapshot, EPOCH)) == {"g0": "busy", "g1": "busy", "later": "reserved"}


# Properties, of every row of `POLICIES`.


@st.composite
def gang_snapshots(draw: st.DrawFn) -> Snapshot:
    labels = st.sampled_from(
        [{}, {"hetero/rack": "r1"}, {"hetero/rack": "r2"}, {"hetero/rack": "r1", "hetero/site": "s"}]
    )
    present = []
    for number in range(draw(st.integers(1, 4))):
        worker = draw(workers(f"worker-{number}"))
        present.append(worker.model_copy(update={"labels": worker.labels | draw(labels)}))
    usage = {}
    for worker in present:
        for device in worker.devices:
            part = draw(st.sampled_from([0, 0, 0, 0.5, 1]))
            if part:
                usage[worker.id, device.id] = DeviceUsage(
                    int(device.capacity_milli * part), int(device.memory_bytes * part)
                )
    pending: list[PendingRequest] = []
    holders = {}
    for unit in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 4))
        alike = draw(st.none() | st.just(draw(requests())))
        topology = draw(st.sampled_from([None, "host", "rack", "rack@5s", "site@2s", "nvlink@3s", "numa"]))
        for member in range(size):
            request = alike or draw(requests())
            options = [alternative.model_dump(exclude_defaults=True) for alternative in request.alternatives]
            if all(option.get("kind") != "cpu" for option in options) or topology not in ("nvlink@3s", "numa"):
                options = [option | {"topology": topology} for option in options]
            member_request = a_pending(
                f"u{unit}-{member}", options, at_s=draw(st.integers(0, 3)), dag_id=draw(st.sampled_from("ab")),
                gang=f"gang-{unit}" if size > 1 else "", gang_size=size,
            )  # fmt: skip
            fate = draw(st.sampled_from(["waits"] * 6 + ["holds", "absent"])) if size > 1 else "waits"
            if fate == "waits":
                pending.append(member_request)
            elif fate == "holds":
                holders[member_request.id] = member_request
    return Snapshot(7, tuple(present), usage, tuple(pending), holders=holders)


thorough = settings(max_examples=effort(4, 20), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@rows
@thorough
@given(snapshot=gang_snapshots(), after_s=st.integers(0, 10))
def test_gangs_are_placed_all_or_none_within_their_level(name: str, snapshot: Snapshot, after_s: int) -> None:
    now = EPOCH + timedelta(seconds=after_s)
    plan = make(name).decide(snapshot, now)
    assert plan_faults(snapshot, plan) == []
    pending = {request.id: request for request in snapshot.pending}
    hosts = {worker.id: worker for worker in snapshot.workers}
    placed = Counter(pending[place.request_id].gang for place in plan.places)
    for gang, number in placed.items():
        if gang:
            assert number == sum(request.gang == gang for request in snapshot.pending)
            places = [place for place in plan.places if pending[place.request_id].gang == gang]
            level = gang_level(pending[p.request_id].request.alternatives[p.alternative] for p in places)
            where = [hosts[place.worker_id] for place in places]
            for label in ("host", "rack"):
                if level == label:
                    assert (
                        len({(w.host if label == "host" else w.labels.get("hetero/rack", w.host)) for w in where}) == 1
                    )


@rows
@thorough
@given(snapshot=gang_snapshots(), before=gang_snapshots())
def test_the_same_gangs_give_the_same_plan(name: str, snapshot: Snapshot, before: Snapshot) -> None:
    used = make(name)
    used.decide(before, EPOCH)
    turned = replace(snapshot, workers=snapshot.workers[::-1], pending=snapshot.pending[::-1])
    expected = make(name).decide(snapshot, EPOCH)
    assert used.decide(snapshot, EPOCH) == expected
    assert used.decide(turned, EPOCH) == expected


@rows
@thorough
@given(snapshot=gang_snapshots(), after_s=st.integers(0, 12))
def test_no_request_waits_for_a_topology_beyond_its_budget(name: str, snapshot: Snapshot, after_s: int) -> None:
    now = EPOCH + timedelta(seconds=after_s)
    plan = make(name).decide(snapshot, now)
    assert plan.until is None or plan.until > now
    pending = {request.id: request for request in snapshot.pending}
    for decision in plan.decisions:
        if not isinstance(decision, Wait) or decision.reason.code is not ReasonCode.SCATTERED:
            continue
        demands = [a.topology for a in pending[decision.request_id].request.alternatives if a.topology]
        if any(topology.budget_s is None for topology in demands):
            continue
        assert decision.reason.until is not None
        assert plan.until is not None
        assert now < plan.until <= decision.reason.until
        longest = max(topology.budget_s or 0.0 for topology in demands)
        assert decision.reason.until <= pending[decision.request_id].submitted_at + timedelta(seconds=longest)
