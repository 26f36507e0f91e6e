"""The agent's loop alone: what it sends when, to a server that the test scripts."""

import os
import random
from collections.abc import Callable
from itertools import pairwise
from math import inf
from types import SimpleNamespace

import pytest

from hetero_airflow.agent.agent import LEAVE_TIMEOUT_S, MAX_RETRY_WAIT_S, REPORT_AGAIN_S, Agent, retry_wait_s
from hetero_airflow.agent.connection import RefusedByServer, ServerUnreachable
from hetero_airflow.agent.error_watch import ErrorWatch
from hetero_airflow.agent.protocol import HEARTBEAT_S, Heartbeat, InventoryReport, RefusalCode, ServerReply
from hetero_airflow.discovery import readings_watch
from hetero_airflow.discovery.health.xid_watch import XidEvent
from hetero_airflow.discovery.readings_watch import Answer, ReadingsWatch
from hetero_airflow.discovery.used_devices import UsedDevices
from hetero_airflow.engines.host.held_devices import LocalRunDevices
from hetero_airflow.engines.host.lease_files import CurrentLeases, LeaseFile, UncheckedLeases
from hetero_airflow.engines.host.processes import ProcessIdentity
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.host_data import HostData, held_name
from hetero_airflow.model.worker import DeviceUser, Inventory
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_worker

READING = Telemetry(device_id="GPU-0", power_w=70)


def down() -> ServerUnreachable:
    return ServerUnreachable("the API server", found="nothing", remedy="Wait")


def refused(code: RefusalCode) -> RefusedByServer:
    return RefusedByServer(code, "worker a", found="x", remedy="y")


class World:
    """A host, a server and a clock. Each pause advances the clock until the test's time is over."""

    def __init__(self, inventories: list[Inventory | None], stop_at_s: float = 60) -> None:
        self.now = 0.0
        self.stops = [stop_at_s]
        self.inventories = inventories
        self.sent: list[tuple[float, str]] = []
        self.known = ""
        self.here: frozenset[str] = frozenset()
        self.over_at: dict[str, float] = {}
        self.reported: frozenset[str] = frozenset()
        self.unchecked = UncheckedLeases(lambda: self.now)
        self.local_runs = LocalRunDevices()
        self.data = [HostData()]
        """What the host holds at one heartbeat after the other; the last stays."""
        self.leased: frozenset[int] = frozenset()
        """Pids of the processes of leases; such a pid is the lease's id too."""
        self.unknown: frozenset[int] = frozenset()
        self.looked_at = 0.0
        self.refreshed: list[Inventory] = []
        self.ended: list[tuple[float, str]] = []
        self.xids: list[XidEvent] = []
        listening = SimpleNamespace(poll=lambda: [self.xids.pop(0) for _ in list(self.xids)])
        self.errors = ErrorWatch(listening, lambda: EPOCH)
        self.answer: Callable[[InventoryReport | Heartbeat], ServerReply | None] = lambda _: None
        """Replaces the normal reply if it returns one; may raise."""

    def poll(self) -> Inventory | None:
        return self.inventories.pop(0) if self.inventories else None

    def refresh(self) -> None:
        """Discovery gives the inventory that the test has for this."""
        self.looked_at = self.now
        self.inventories += self.refreshed

    def current(self) -> CurrentLeases:
        return CurrentLeases(self.leased - self.unknown, {}, frozenset())

    def note_unknown(self, leases) -> bool:
        before, self.unknown = self.unknown, frozenset(map(int, leases))
        return self.unknown > before

    def is_over(self, lease_id: str) -> bool:
        return self.now >= self.over_at.get(lease_id, inf)

    def live_leases(self) -> frozenset[str]:
        self.reported = frozenset(lease_id for lease_id in self.here if not self.is_over(lease_id))
        return self.reported

    @property
    def has_files(self) -> bool:
        return bool(self.reported)

    def is_file_gone(self) -> bool:
        return any(map(self.is_over, self.reported))

    def end(self, leases) -> None:
        self.ended += [(round(self.now, 1), lease_id) for lease_id in leases]

    def send_inventory(self, report: InventoryReport) -> ServerReply:
        self.sent.append((round(self.now, 1), f"inventory of {len(report.worker.devices)}"))
        answer = self.answer(report)
        self.known = str(len(self.sent))
        return answer or ServerReply(inventory=self.known)

    def send_heartbeat(self, beat: Heartbeat) -> ServerReply:
        parts = [
            "leaving" if beat.is_leaving else "beat",
            *(f"{reading.power_w:g} W" for reading in beat.telemetry if reading.power_w),
        ]
        parts += sorted(beat.leases)
        parts += [f"taken back: {beat.reclaimed}"] * bool(beat.reclaimed)
        parts += [f"{error.device_id}:{error.xid or f'{error.ecc_errors} ECC'}" for error in beat.errors]
        self.sent.append((round(self.now, 1), " ".join(parts)))
        return self.answer(beat) or ServerReply(inventory=self.known, leases=0 if beat.is_leaving else None)

    def pause(self, seconds: float) -> bool:
        if self.stops and self.now + seconds >= self.stops[0]:
            self.now = self.stops.pop(0)
            return True
        self.now += seconds
        return False

    def run(
        self, used: UsedDevices | None = None, spot: object = None, readings: ReadingsWatch | None = None
    ) -> list[tuple[float, str]]:
        rng = random.Random(1)
        ports = (self, self, self.errors, self)
        Agent(
            "worker-a", "celery", *ports, used=used, spot=spot, readings=readings, pause=self.pause, rng=rng,
            clock=lambda: self.now, look_at_data=lambda: self.data.pop(0) if len(self.data) > 1 else self.data[0],
        ).run()  # fmt: skip
        return self.sent


def inventory(*devices, problems=(), **fields) -> Inventory:
    worker = a_worker(devices=devices or (a_cpu(), a_device()), **fields).model_copy(update={"problems": problems})
    return Inventory(worker=worker, telemetry=(READING,))


def test_the_inventory_is_reported_once_and_then_only_that_the_worker_is_there():
    world = World([None, inventory(), None, None], stop_at_s=11)
    assert world.run() == [(0.2, "inventory of 2"), (5.2, "beat"), (10.2, "beat"), (11, "leaving")]


def test_what_the_host_holds_is_reported_when_it_changes_and_after_each_inventory():
    world = World([inventory(), None, None, None, None, inventory(a_cpu())], stop_at_s=36)
    held = HostData(held={held_name("s3://lake/a"): 1})
    world.data = [HostData(), held]
    told = []

    def answer(message):
        if isinstance(message, Heartbeat) and not message.is_leaving:
            told.append((round(world.now), message.data))
            if len(told) == 2:
                raise down()

    world.answer = answer
    world.run()
    new = [at for at, data in told if data == held]
    inventories = [at for at, text in world.sent if text.startswith("inventory")]
    assert told[0] == (5, HostData())
    assert new[0] == 10, "not answered, so it is sent again"
    assert len(new) == 3
    assert new[1] < inventories[1] < new[2]


def test_a_new_inventory_is_reported_and_new_readings_of_an_old_one_come_with_the_next_heartbeat():
    world = World([inventory(), inventory(), inventory(a_cpu())], stop_at_s=14)
    assert world.run()[:3] == [(0, "inventory of 2"), (5, "beat 70 W"), (10, "inventory of 1")]


def test_devices_of_a_probe_that_failed_stay_known():
    world = World([inventory(), inventory(a_cpu(), problems=("nvidia: no answer",))], stop_at_s=6)
    assert world.run()[1] == (5, "inventory of 2")


def test_the_workers_engine_is_the_agents():
    world = World([inventory(engine="local")], stop_at_s=1)
    engines = []
    world.answer = lambda report: engines.append(report.worker.engine) if isinstance(report, InventoryReport) else None
    world.run()
    assert engines == ["celery"]


def test_a_server_that_has_lost_the_inventory_is_reported_at_once():
    world = World([inventory()], stop_at_s=12)
    begun = [False]

    def forget(report):
        if isinstance(report, Heartbeat) and not begun[0]:
            begun[0], world.known = True, ""

    world.answer = forget
    assert world.run()[:4] == [(0, "inventory of 2"), (5, "beat"), (5, "inventory of 2"), (10, "beat")]


def test_a_server_that_is_away_is_tried_again_less_and_less_often_and_the_log_says_so_once(caplog):
    world = World([inventory()], stop_at_s=300)
    up_at = 200

    def answer(_):
        if world.now < up_at:
            raise down()

    world.answer = answer
    with caplog.at_level("INFO"):
        entries = world.run()
    tries = [at for at, _ in entries if at < up_at]
    assert 40 < len(tries) < 130
    assert all(b - a <= MAX_RETRY_WAIT_S + 0.1 for a, b in pairwise(tries))
    after = [(at, what) for at, what in entries if at >= up_at]
    assert after[0][1] == "inventory of 2"
    assert after[0][0] < up_at + MAX_RETRY_WAIT_S
    assert [record.levelname for record in caplog.records][:2] == ["WARNING", "INFO"]
    assert f"after {len(tries)} tries" in caplog.records[1].getMessage()


def test_a_thousand_agents_do_not_come_back_at_the_same_moment():
    waits = sorted(retry_wait_s(6, random.Random(n)) for n in range(1000))
    assert waits[100] < 1 < 4 < waits[-100] <= MAX_RETRY_WAIT_S


@pytest.mark.parametrize("code", [RefusalCode.UNKNOWN_KEY, RefusalCode.SUPERSEDED])
def test_an_agent_with_an_unknown_or_superseded_key_ends_with_the_reason(code):
    world = World([inventory()])

    def answer(report):
        if isinstance(report, Heartbeat):
            raise refused(code)

    world.answer = answer
    with pytest.raises(RefusedByServer, match="found x"):
        world.run()
    assert world.now == HEARTBEAT_S


@pytest.mark.parametrize("code", [RefusalCode.EXPIRED, RefusalCode.REPLAYED])
def test_a_refusal_that_time_may_cure_is_tried_again(code):
    world = World([inventory()], stop_at_s=100)

    def answer(_):
        if world.now < 50:
            raise refused(code)

    world.answer = answer
    entries = world.run()
    assert [what for at, what in entries if at >= 50][:2] == ["inventory of 2", "beat"]


def test_an_inventory_that_is_not_taken_is_not_reported_with_each_heartbeat(caplog):
    world = World([inventory()], stop_at_s=130)

    def answer(report):
        if isinstance(report, InventoryReport):
            raise refused(RefusalCode.INVALID)

    world.answer = answer
    entries = world.run()
    assert [at for at, what in entries if what.startswith("inventory")] == [0, REPORT_AGAIN_S, 2 * REPORT_AGAIN_S]
    assert len(entries) > 20
    assert "does not accept this worker's inventory" in caplog.text


def test_devices_that_another_worker_reports_too_are_logged(caplog):
    world = World([inventory()], stop_at_s=100)
    world.answer = lambda report: ServerReply(inventory="1", contested=("GPU-0",))
    world.run()
    assert "Another worker reports the devices GPU-0 too" in caplog.text


def test_leaving_waits_for_the_tasks_that_are_left():
    world = World([inventory()], stop_at_s=6)
    leases = iter([2, 1, 0])
    world.answer = lambda report: ServerReply(leases=next(leases)) if getattr(report, "is_leaving", False) else None
    assert world.run()[-3:] == [(6, "leaving"), (11, "leaving"), (16, "leaving")]


def test_a_second_stop_signal_ends_the_wait_for_tasks():
    world = World([inventory()])
    world.stops = [6, 12]
    world.answer = lambda report: ServerReply(leases=2) if getattr(report, "is_leaving", False) else None
    assert world.run()[-2:] == [(6, "leaving"), (11, "leaving")]
    assert world.now == 12


def test_a_server_that_does_not_answer_does_not_keep_a_leaving_agent(caplog):
    world = World([inventory()], stop_at_s=6)

    def answer(report):
        if getattr(report, "is_leaving", False):
            raise down()

    world.answer = answer
    world.run()
    assert 6 + LEAVE_TIMEOUT_S <= world.now < 6 + LEAVE_TIMEOUT_S + MAX_RETRY_WAIT_S + 1
    assert "leaves without telling it" in caplog.text


def test_each_heartbeat_reports_the_leases_of_running_processes():
    world = World([inventory()], stop_at_s=11)
    world.here = frozenset({"l1", "l2"})
    assert world.run()[1:] == [(5, "beat l1 l2"), (10, "beat l1 l2"), (11, "leaving l1 l2")]


def test_the_end_of_a_lease_is_reported_at_once():
    world = World([inventory()], stop_at_s=12)
    world.here, world.over_at = frozenset({"l1", "l2"}), {"l1": 7.2}
    assert world.run()[1:] == [(5, "beat l1 l2"), (7.5, "beat l2"), (12, "leaving l2")]


def test_the_end_of_the_last_lease_lets_a_leaving_agent_go_at_once():
    world = World([inventory()], stop_at_s=6)
    world.here, world.over_at = frozenset({"l1"}), {"l1": 7.2}
    world.answer = lambda report: ServerReply(leases=len(world.reported)) if getattr(report, "is_leaving", 0) else None
    assert world.run()[-2:] == [(6, "leaving l1"), (7.5, "leaving")]


def test_processes_of_ended_leases_are_ended_whatever_was_reported():
    world = World([inventory()], stop_at_s=6)
    world.answer = lambda report: ServerReply(inventory="1", leases=0, end=(f"l{len(world.sent)}",))
    world.run()
    assert world.ended == [(0, "l1"), (5, "l2"), (6, "l3")]


def test_a_worker_that_is_kept_out_reports_its_inventory_with_each_heartbeat_until_it_is_not(caplog):
    world = World([inventory()], stop_at_s=18)
    world.here = frozenset({"l1"})
    reports = []

    def answer(report):
        if isinstance(report, InventoryReport) and world.now < 10:
            reports.append(report.leases)
            return ServerReply(end=("l1",))
        world.here = frozenset()
        return None

    world.answer = answer
    assert [what for _, what in world.run()] == ["inventory of 2"] * 3 + ["beat", "leaving"]
    assert reports == [frozenset({"l1"})] * 2
    assert caplog.text.count("processes of these leases still run here: l1") == 1


def test_errors_of_devices_are_reported_with_the_next_heartbeat_until_one_is_answered():
    readings = [(READING.model_copy(update={"ecc_errors": errors}),) for errors in (3, 5)]
    inventories = [inventory().model_copy(update={"telemetry": telemetry}) for telemetry in readings]
    world = World(inventories, stop_at_s=21)
    world.xids.append(XidEvent(uuid="GPU-0", xid=79, at=EPOCH))

    def answer(report):
        if isinstance(report, Heartbeat) and world.now < 9:
            raise down()

    world.answer = answer
    beats = [what for _, what in world.run() if what.startswith("beat")]
    assert len(beats) > 2
    assert set(beats[:-1]) == {"beat 70 W GPU-0:2 ECC GPU-0:79"}
    assert beats[-1] == "beat"


def test_errors_are_kept_as_long_as_the_server_has_another_inventory():
    world = World([inventory()], stop_at_s=16)
    world.xids.append(XidEvent(uuid="GPU-0", xid=79, at=EPOCH))

    def forget(report):
        if isinstance(report, Heartbeat) and world.now == 5:
            world.known = ""

    world.answer = forget
    assert [what for _, what in world.run()][:5] == [
        "inventory of 2",
        "beat GPU-0:79",
        "inventory of 2",
        "beat GPU-0:79",
        "beat",
    ]


def test_an_ended_lease_counts_until_the_server_knows_that_another_process_uses_its_device(tmp_path):
    world, path = World([inventory()], stop_at_s=12), tmp_path / "l1.json"
    gone = ProcessIdentity(pid=2**22 + 1, ticks=1)
    file = LeaseFile(lease="l1", worker="worker-a", place="", supervisor=gone, task=gone, is_unchecked=True)
    path.touch()
    user = DeviceUser(device_id="GPU-0", pid=os.getpid(), name="python", owner="root")
    world.refreshed = [inventory().model_copy(update={"users": (user,)})]
    known = []

    def answer(message):
        if world.now >= 5 and not known:
            world.unchecked.update({path: file}, ())
        if isinstance(message, InventoryReport) and world.now >= 5:
            assert path.exists(), "the lease counts until the server has the inventory"
            known.append([device.id for device in message.worker.devices if not device.leasable])

    world.answer = answer
    world.run(UsedDevices(()))
    assert known == [["GPU-0"]]
    assert not path.exists()


def test_the_devices_are_looked_at_again_when_the_server_does_not_know_a_lease():
    world, pid = World([inventory()], stop_at_s=22), str(os.getpid())
    user = DeviceUser(device_id="GPU-0", pid=os.getpid(), name="python", owner="root")
    world.inventories = [inventory().model_copy(update={"users": (user,)})]
    world.refreshed, world.leased = list(world.inventories), frozenset({os.getpid()})
    known = []

    def answer(message):
        if isinstance(message, InventoryReport):
            known.append([device.id for device in message.worker.devices if not device.leasable])
        return ServerReply(inventory="1", unknown=(pid,), leases=0) if world.now > 9 else None

    world.answer = answer
    world.run(UsedDevices(()))
    assert known == [[], ["GPU-0"]]


def test_a_leaving_worker_still_looks_at_the_devices_of_runs_that_end(tmp_path):
    world, path = World([], stop_at_s=0), tmp_path / "l1.json"
    world.stops.append(30)
    gone = ProcessIdentity(pid=2**22 + 1, ticks=1)
    file = LeaseFile(lease="l1", worker="worker-a", place="", supervisor=gone, task=gone, is_unchecked=True)
    path.touch()
    world.unchecked.update({path: file}, ())
    world.refreshed = [inventory()]
    world.answer = lambda message: ServerReply(leases=len(world.unchecked.ids))
    assert world.run()[-1] == (5, "leaving")
    assert not path.exists()


class Notices:
    """A watch whose notice comes at one time and goes at another."""

    is_watching = True

    def __init__(self, world: World, from_s: float, until_s: float) -> None:
        self._world, self._from_s, self._until_s = world, from_s, until_s

    @property
    def notice(self) -> str:
        return "gone soon" if self._from_s <= self._world.now < self._until_s else ""

    def start(self) -> None:
        pass


def test_a_notice_of_the_provider_is_reported_at_once_and_so_is_its_end():
    world = World([inventory()], stop_at_s=22)
    assert world.run(spot=Notices(world, 6, 13)) == [
        (0, "inventory of 2"),
        (5, "beat"),
        (6, "beat taken back: gone soon"),
        (11, "beat taken back: gone soon"),
        (13, "beat"),
        (18, "beat"),
        (22, "leaving"),
    ]


def test_a_server_that_is_away_is_not_asked_more_often_because_of_a_notice():
    world = World([inventory()], stop_at_s=60)

    def answer(report):
        raise down()

    world.answer = answer
    world.run(spot=Notices(world, 0, 60))
    assert len(world.sent) < 40


@pytest.mark.parametrize("spot", ["true", "false"])
def test_a_spot_worker_that_is_told_to_stop_lets_its_tasks_move(spot):
    world = World([inventory(labels={"hetero/spot": spot})], stop_at_s=1)
    cause = " taken back: its agent was told to stop, and it has the label hetero/spot" if spot == "true" else ""
    assert world.run()[-1] == (1, f"leaving{cause}")


@pytest.mark.parametrize("took_s", [0.01, 1, 3, 1e9])
def test_no_reading_at_the_server_is_older_than_ten_seconds(monkeypatch, took_s):
    """A reading says in watts when it was asked for. A probe that hangs gives no value instead of an old one."""
    monkeypatch.setattr(readings_watch, "names", lambda group, table: ["nvidia"])
    monkeypatch.setattr(readings_watch, "has_trace", lambda name, environment: True)
    world = World([inventory(a_device("GPU-0"))], stop_at_s=300)
    asked: list[float] = []

    def answer() -> Answer | None:
        if world.now < asked[0] + took_s:
            return None
        return Answer(readings=(Telemetry(device_id="GPU-0", power_w=asked.pop()),), took_s=took_s)

    reader = SimpleNamespace(is_alive=True, ask=lambda: asked.append(world.now), poll=answer)
    told: list[tuple[float, float | None]] = []
    world.answer = lambda message: told.extend((world.now, reading.power_w) for reading in message.telemetry)
    world.run(readings=ReadingsWatch(lambda probe: reader, lambda: world.now))
    steady = told[2:]
    assert len(steady) > 50
    assert all((power_w is not None) == (took_s < 5) for _, power_w in steady)
    assert all(later - made_at <= 10 for (_, made_at), (later, _) in pairwise(steady) if made_at is not None)
