"""Device-time from a real database, against a witness that looks at each hour of a random history."""

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.usage.device_time import DEVICE_SECOND
from hetero_airflow.store import tables
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.sql.usage import KEPT_DAYS, Usage, read_usage
from hetero_airflow.store.store import HoldLifted, HoldPlaced, RequestSubmitted, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease

HOUR = 3600 * DEVICE_SECOND
GPUS = ("GPU-0", "GPU-1")
DAY = timedelta(days=1)


def at(hours: float):
    return EPOCH + timedelta(hours=hours)


def usage(engine, since, until) -> Usage:
    with read_transaction(engine) as connection:
        return read_usage(connection, since, until)


def hours_of(engine, since: float, until: float) -> dict[str, float]:
    """Hours of all devices together that existed, were held, were on hold, and were free."""
    sums: Counter[str] = Counter()
    for row in usage(engine, at(since), at(until)).devices:
        sums += Counter(existed=row.existed, held=row.held, on_hold=row.on_hold, free=row.free)
    return {name: amount / HOUR for name, amount in sums.items()}


def hold_on(device_id: str, now) -> Hold:
    return Hold("worker-a", device_id, HoldKind.DRAINED, "new fan", now, "a person undrains it")


@dataclass
class History:
    """Writes a random history to a store, an event an hour, and keeps what each device did in each hour."""

    store: SqlStore
    random: random.Random
    is_online: bool = False
    devices: tuple[str, ...] = GPUS
    holds: set[str] = field(default_factory=set)
    leases: dict[str, object] = field(default_factory=dict)
    """Device id → its lease."""
    seen: list[dict[str, str]] = field(default_factory=list)
    """For each hour: device id → held, on hold or free."""
    leased: Counter = field(default_factory=Counter)
    """Task → hours."""

    def step(self) -> None:
        now = at(len(self.seen))
        self.random.choice((self.report, self.lose, self.drain, self.undrain, self.grant, self.grant, self.release))(
            now
        )
        hour = dict.fromkeys(self.leases, "held")
        for device in self.devices if self.is_online else ():
            hour.setdefault(device, "on_hold" if {device, ""} & self.holds else "free")
        self.seen.append(hour)
        self.leased.update(lease.request_id for lease in self.leases.values())

    def report(self, now) -> None:
        self.is_online, self.devices = True, self.random.choice((GPUS, GPUS, GPUS[:1]))
        worker = a_worker("worker-a", tuple(a_device(name, index=int(name[-1])) for name in self.devices))
        self.store.record([WorkerSeen(worker)], now)

    def lose(self, now) -> None:
        self.is_online = False
        self.store.record([WorkerLost("worker-a")], now)

    def drain(self, now) -> None:
        device = self.random.choice(("", *GPUS))
        self.holds.add(device)
        self.store.record([HoldPlaced(hold_on(device, now))], now)

    def undrain(self, now) -> None:
        device = self.random.choice(("", *GPUS))
        self.holds.discard(device)
        self.store.record([HoldLifted("worker-a", device, HoldKind.DRAINED)], now)

    def grant(self, now) -> None:
        device = self.random.choice(GPUS)
        name = f"task{len(self.seen)}"
        plan = Plan((a_place(name, **{device: 1000}),))
        made = self.store.commit(plan, now, now + DAY, [RequestSubmitted(a_pending(name))])
        if made.leases:
            assert device not in self.leases
            self.leases[device] = made.leases[0]

    def release(self, now) -> None:
        for device in [device for device in self.leases if self.random.random() < 0.7]:
            lease = self.leases.pop(device)
            move_lease(self.store, lease.id, lease.token, LeaseState.RELEASED, now)

    def expected(self, since: int, until: int) -> dict[str, float]:
        """What the witness saw in these hours, without zeros."""
        states = Counter(state for hour in self.seen[since:until] for state in hour.values())
        return {name: float(count) for name, count in (states + Counter(existed=states.total())).items()}


@pytest.mark.parametrize("seed", range(6))
def test_held_free_and_on_hold_add_up_to_the_time_that_existed(engine, seed):
    history = History(SqlStore(engine), random.Random(seed))
    for _ in range(120):
        history.step()
    windows = [(0, 120), (24, 48), (31, 77), (119, 120), (120, 200)]
    for since, until in windows[:-1]:
        assert hours_of(engine, since, until) == history.expected(since, until), (since, until)
    assert history.expected(0, 120)["existed"] > 60, "the history has devices"
    tasks = Counter()
    for row in usage(engine, EPOCH, at(120)).tasks:
        tasks[row.task_id] += row.held
    assert tasks == Counter({name: hours * HOUR for name, hours in history.leased.items()})


@pytest.mark.parametrize("seed", range(4))
def test_pruning_moves_the_time_into_sums_and_counts_no_second_twice(engine, seed):
    history = History(SqlStore(engine), random.Random(100 + seed))
    random_cuts = sorted(random.Random(seed).sample(range(10, 110), 5))
    for _ in range(120):
        history.step()
        if len(history.seen) in random_cuts:
            history.store.prune(at(len(history.seen) - 7.5))
            history.store.prune(at(len(history.seen) - 30))
    assert hours_of(engine, 0, 120) == history.expected(0, 120)
    assert hours_of(engine, 24, 120) == history.expected(24, 120)
    before = usage(engine, EPOCH, at(120)).tasks
    history.store.prune(at(120))
    assert hours_of(engine, 0, 120) == history.expected(0, 120)
    totals = [Counter(), Counter()]
    begun = [Counter(), Counter()]
    for number, rows in enumerate((before, usage(engine, EPOCH, at(120)).tasks)):
        for row in rows:
            totals[number][row.task_id, row.day] += row.held
            begun[number][row.task_id] += row.leases
    assert totals[0] == totals[1]
    assert begun[0] == begun[1] == Counter(dict.fromkeys(history.leased, 1)), "each lease began once"


def test_shares_and_cores_count_as_they_are_held(engine):
    store = SqlStore(engine)
    requests = [RequestSubmitted(a_pending(name, dag_id="etl")) for name in ("half", "cores")]
    store.record([WorkerSeen(a_worker("worker-a", (a_cpu(8), a_device()))), *requests], EPOCH)
    places = (a_place("half", **{"GPU-0": 500, "cpu": 2000}), a_place("cores", cpu=4000))
    store.commit(Plan(places), EPOCH, EPOCH + DAY)
    rows = {row.device_id: row for row in usage(engine, EPOCH, at(2)).devices}
    assert [rows["GPU-0"].existed, rows["GPU-0"].held, rows["GPU-0"].free] == [2 * HOUR, HOUR, HOUR]
    assert [rows["cpu"].existed, rows["cpu"].held, rows["cpu"].free] == [16 * HOUR, 12 * HOUR, 4 * HOUR]
    tasks = {(row.task_id, row.kind): row.held for row in usage(engine, EPOCH, at(2)).tasks}
    assert tasks == {("half", "gpu"): HOUR, ("half", "cpu"): 4 * HOUR, ("cores", "cpu"): 8 * HOUR}


def test_a_device_whose_parts_are_leased_does_not_count_beside_them(engine):
    parts = [a_device(f"MIG-{n}", index=n, partition="3g.20gb", parent="GPU-0") for n in (0, 1)]
    parent = a_device("GPU-0", leasable=False, problem="it is in MIG mode: its instances are leased")
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker("worker-a", (parent, *parts)))], EPOCH)
    store.record([HoldPlaced(hold_on("GPU-0", at(1)))], at(1))
    rows = usage(engine, EPOCH, at(3)).devices
    classes = {"nvidia/a100-sxm4-40gb/3g.20gb"}
    assert {(row.device_id, row.existed, row.on_hold) for row in rows} == {
        ("MIG-0", 3 * HOUR, 2 * HOUR),
        ("MIG-1", 3 * HOUR, 2 * HOUR),
    }
    assert {row.device_class for row in rows} == classes


def test_a_heartbeat_without_news_writes_nothing_and_events_of_one_moment_leave_no_empty_rows(engine):
    store = SqlStore(engine)
    worker = a_worker()
    store.record([WorkerSeen(worker), WorkerLost(worker.id), WorkerSeen(worker)], EPOCH)
    store.record([HoldPlaced(hold_on("", EPOCH)), HoldLifted(worker.id, "", HoldKind.DRAINED)], at(1))
    for minute in range(5):
        store.record([WorkerSeen(worker)], at(1 + minute / 60))
    with engine.connect() as connection:
        rows = connection.execute(select(tables.device_presence)).all()
    assert [(row.since, row.until) for row in rows] == [(EPOCH, None)] * 3


def test_no_time_counts_twice_where_two_clocks_differ(engine):
    store, worker = SqlStore(engine), a_worker("worker-a", (a_device(),))
    store.record([WorkerSeen(worker)], EPOCH)
    store.record([HoldPlaced(hold_on("", at(2)))], at(2))
    store.record([HoldLifted(worker.id, "", HoldKind.DRAINED)], at(1))
    store.record([HoldPlaced(hold_on("GPU-0", at(3)))], at(3))
    store.record([WorkerLost(worker.id)], at(5))
    store.record([WorkerSeen(worker)], at(4))
    assert hours_of(engine, 0, 8) == {"existed": 8.0, "free": 3.0, "on_hold": 5.0}


def test_old_sums_are_deleted(engine):
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker()), WorkerLost("worker-b")], EPOCH)
    store.record([WorkerLost("worker-a")], at(1))
    store.prune(at(2))

    def rows() -> int:
        with engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(tables.device_day)).scalar_one()

    assert rows() == 3
    store.prune(EPOCH + KEPT_DAYS * DAY)
    assert rows() == 3
    store.prune(EPOCH + (KEPT_DAYS + 1) * DAY)
    assert rows() == 0
