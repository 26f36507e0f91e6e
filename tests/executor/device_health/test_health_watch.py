"""From an error to the hold in the store, through a real burn-in in a process of its own, and back."""

import sys
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.discovery.health.burn_in import BurnInOutcome, BurnInResult
from hetero_airflow.discovery.health.xid_watch import XidEvent
from hetero_airflow.errors import StoreUnavailable
from hetero_airflow.executor.device_health import burn_in_runs
from hetero_airflow.executor.device_health.health_watch import HealthWatch
from hetero_airflow.executor.device_health.host_health import HostHealth
from hetero_airflow.model.device import SICK_KEY, Telemetry
from hetero_airflow.model.devices.health import NO_ERRORS, HealthState
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import Inventory
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.store.store import HealthNoted, HoldLifted, HoldPlaced, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeClock, a_cpu, a_device, a_pending, a_place, a_worker, move_lease
from tests.agent.test_error_watch import Xids
from tests.sqlite_store import SqliteStore

KEY = ("worker-a", "GPU-0")


class CountingStore(SqliteStore):
    """Knows how often it was asked for more than the snapshot, of which a heartbeat has one anyway."""

    calls = 0
    is_down = False

    def __getattribute__(self, name):
        if name in ("record", "health"):
            if type(self).is_down:
                raise StoreUnavailable("the store", found="nobody", remedy="wait")
            type(self).calls += 1
        return super().__getattribute__(name)


class Host:
    """One host: its devices, a watch over them, and a clock."""

    def __init__(self, store=None, devices=None, worker_id="worker-a"):
        self.clock, self.xids = FakeClock(), Xids()
        self.store = store or SqliteStore()
        self.worker = a_worker(worker_id, devices)
        self.here = HostHealth(worker_id, self.xids)
        self.watch = HealthWatch(self.store, self.here)
        self.see()

    def see(self, *telemetry, **changes):
        """A discovery, in which devices of these ids differ."""
        devices = tuple(
            device.model_copy(update=changes.get(device.id.replace("-", "_"), {})) for device in self.worker.devices
        )
        inventory = Inventory(worker=self.worker.model_copy(update={"devices": devices}), telemetry=telemetry)
        self.store.record([WorkerSeen(inventory.worker, telemetry)], self.clock.now())
        self.here.take_inventory(inventory, self.clock.now())

    def add_xids(self, *xids, uuid="GPU-0"):
        self.xids.new_events += [XidEvent(uuid=uuid, xid=xid, at=self.clock.now()) for xid in xids]
        self.step()

    def step(self, seconds=0.0, times=1):
        for _ in range(times):
            self.watch.step(self.clock.advance(seconds))

    def start_burn_in(self, seconds=20):
        """Step until the burn-in that runs has ended."""
        assert self.here._runs is not None
        end = time.monotonic() + seconds
        while self.here._runs is not None and time.monotonic() < end:
            self.step()
            time.sleep(0.01)

    def fail_and_burn_in(self, uuid="GPU-0"):
        """The device falls off the bus, and is tested after its time."""
        self.add_xids(79, uuid=uuid)
        self.step(60)
        self.start_burn_in()

    @property
    def states(self):
        """Device id → state, of those that are remembered."""
        return {device_id: health.state for (_, device_id), health in self.store.health().items()}

    @property
    def held_devices(self):
        return [hold.device_id for hold in self.store.snapshot().holds]


@pytest.fixture
def host():
    host = Host()
    yield host
    host.watch.close()


@pytest.fixture
def burn_in(monkeypatch):
    """Says what burn-ins answer; each takes a process of its own."""

    def _burn_in(result, code="import sys; print('''{}''')"):
        text = result.model_dump_json() if isinstance(result, BurnInResult) else result
        monkeypatch.setattr(burn_in_runs, "COMMAND", (sys.executable, "-c", code.format(text)))

    return _burn_in


PASSED = BurnInResult(outcome=BurnInOutcome.PASSED, device="cuda:0")
FAILED = BurnInResult(outcome=BurnInOutcome.FAILED, device="cuda:0", found="a product is wrong")


def a_failure(evidence="Xid 79 on GPU-0", devices=("GPU-0",), at=EPOCH, **fields) -> Failure:
    given = {"failure_class": "hardware", "worker": "worker-a", "epoch": 0} | fields
    return Failure(evidence=evidence, device_ids=devices, at=at, **given)


# -- evidence ----------------------------------------------------------------------------------------------------------


def test_one_xid_79_takes_the_device_out_and_nothing_else(host):
    host.add_xids(79)
    (hold,) = host.store.snapshot().holds
    assert (hold.device_id, hold.kind, hold.cause) == (
        "GPU-0",
        HoldKind.QUARANTINED,
        "XID 79, GPU has fallen off the bus",
    )
    assert hold.until == EPOCH + timedelta(minutes=1)
    assert host.states == {"GPU-0": HealthState.QUARANTINED}


def test_a_storm_of_xid_45_leaves_no_trace(host):
    before = host.store.snapshot()
    host.add_xids(*[45] * 1000)
    assert host.store.snapshot() is before
    assert host.states == {}


def test_xids_are_listened_for_only_where_there_are_nvidia_gpus():
    for devices, polls in (
        ((a_cpu(),), 0),
        ((a_device(simulated=True),), 0),
        ((a_device(vendor="amd"),), 0),
        ((a_device(),), 1),
    ):
        host = Host(devices=devices)
        host.step()
        assert host.xids.polls == polls


def test_an_ecc_counter_that_grows_takes_the_device_out_and_one_that_is_high_or_falls_does_not(host):
    for errors, states in ((3, {}), (3, {}), (0, {}), (1, {"GPU-1": HealthState.QUARANTINED})):
        host.see(Telemetry(device_id="GPU-1", ecc_errors=errors), Telemetry(device_id="GPU-0"))
        host.step()
        assert host.states == states
    assert host.store.snapshot().holds[0].cause == "1 uncorrected ECC error"


def test_a_driver_that_asks_for_a_reset_is_one_error_and_the_burn_in_waits_until_it_was_done(host, burn_in):
    burn_in(PASSED)
    sick = {"leasable": False, "problem": "asks to be reset", "details": {SICK_KEY: True}}
    for _ in range(3):
        host.see(GPU_0=sick)
        host.step(3600)
    assert (host.store.health()[KEY].strikes, host.states) == (1, {"GPU-0": HealthState.PROBATION})
    assert host.here._runs is None
    host.see()
    host.step()
    host.start_burn_in()
    assert (host.states, host.held_devices) == ({"GPU-0": HealthState.HEALTHY}, [])


def test_a_failed_task_with_a_fatal_xid_takes_out_the_device_that_had_it(host):
    host.watch.report(a_failure("Xid 79 on GPU-1", ("GPU-0", "GPU-1")), "dag.train")
    host.step()
    assert host.held_devices == ["GPU-1"]


@pytest.mark.parametrize(
    ("evidence", "held_devices"),
    [
        ("XID 79, GPU has fallen off the bus on GPU-1", ["GPU-1"]),
        ("XID 79, GPU has fallen off the bus on GPU-1; XID 95, uncontained memory error on GPU-0", ["GPU-0", "GPU-1"]),
        ('"NVRM: Xid (PCI:0000:3b:00): 79," in the log', []),
    ],
)
def test_the_devices_that_the_evidence_names_are_taken_out(host, evidence, held_devices):
    host.watch.report(a_failure(evidence, ("GPU-0", "GPU-1")), "dag.train")
    host.step()
    assert host.held_devices == held_devices


def test_two_tasks_that_blame_their_devices_take_out_those_that_both_had(host):
    host.watch.report(a_failure("CUBLAS_STATUS_ARCH", ("GPU-0", "GPU-1")), "dag.a")
    host.watch.report(a_failure("CUBLAS_STATUS_ARCH", ("GPU-0", "GPU-1")), "dag.a")
    host.step()
    assert host.held_devices == []
    host.watch.report(a_failure("Xid 63 on GPU-0"), "dag.b")
    host.step()
    assert host.held_devices == ["GPU-0"]
    assert host.store.snapshot().holds[0].cause == "tasks failed on it: Xid 63 on GPU-0"


def test_a_runtime_that_finds_no_device_is_blamed_on_the_device_and_a_full_disk_on_the_worker(host):
    no_device = {"evidence": '"No CUDA GPUs are available" in the exception', "failure_class": "worker"}
    full = {"evidence": '"No space left on device" in the log', "failure_class": "worker", "is_of_host": True}
    for blame, held in ((no_device, "GPU-0"), (full, "")):
        host.watch.report(a_failure(**blame), "dag.a")
        host.watch.report(a_failure(**blame), "dag.a")
        host.step()
        assert held not in host.held_devices, "one task alone may be wrong"
        host.watch.report(a_failure(**blame), "dag.b")
        host.step()
        assert held in host.held_devices
    assert not any(device.leasable for device in host.store.snapshot().workers[0].devices)


def test_a_worker_whose_time_is_over_is_trusted_without_a_burn_in(host, caplog):
    for task in ("dag.a", "dag.b"):
        host.watch.report(a_failure("a full disk", failure_class="worker", is_of_host=True), task)
    host.step()
    (hold,) = host.store.snapshot().holds
    assert (hold.device_id, hold.returns) == ("", "it is 2026-01-01 00:01:00 UTC")
    host.step(60)
    host.step()
    assert host.held_devices == []
    assert "Worker worker-a is quarantined" in caplog.text


@pytest.mark.parametrize("fields", [{"failure_class": "user_error"}, {"worker": None}])
def test_failures_of_other_kinds_and_without_a_lease_say_nothing(host, fields):
    host.watch.report(a_failure(**fields), "dag.a")
    host.step()
    assert host.states == {}


# -- other hosts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["celery", "edge", "kubernetes"])
def test_a_failed_task_takes_out_the_device_that_it_had_on_another_host_which_is_trusted_untested_later(
    host, caplog, engine
):
    host.store.record([WorkerSeen(a_worker("worker-b", engine=engine))], EPOCH)
    host.watch.report(a_failure(worker="worker-b"), "dag.a")
    host.step()
    (hold,) = host.store.snapshot().holds
    assert (hold.worker_id, hold.device_id, hold.kind) == ("worker-b", "GPU-0", HoldKind.QUARANTINED)
    host.step(59)
    assert host.states == {"GPU-0": HealthState.QUARANTINED}
    host.step(1)
    host.step(5)
    assert (host.held_devices, host.states, host.here._runs) == ([], {"GPU-0": HealthState.HEALTHY}, None)
    assert "Device worker-b/GPU-0 can't be tested from here, so it is trusted without a burn-in" in caplog.text
    host.watch.report(a_failure(worker="worker-b", at=host.clock.now()), "dag.a")
    host.step()
    assert host.store.health()["worker-b", "GPU-0"].strikes == 2


def test_a_device_of_another_host_is_not_trusted_while_its_probe_finds_it_sick(host):
    sick = a_device("GPU-0", leasable=False, problem="asks to be reset", details={SICK_KEY: True})
    host.store.record([WorkerSeen(a_worker("worker-b", (sick,), engine="celery"))], EPOCH)
    host.watch.report(a_failure(worker="worker-b"), "dag.a")
    host.step(60, times=3)
    assert host.states == {"GPU-0": HealthState.PROBATION}
    host.store.record([WorkerSeen(a_worker("worker-b", engine="celery"))], host.clock.now())
    host.step(5)
    assert host.held_devices == []


@pytest.mark.parametrize("is_mig", [False, True])
def test_a_device_of_another_host_is_not_trusted_while_a_task_is_on_it(host, is_mig):
    devices = (a_device("GPU-0"),)
    if is_mig:
        parent = a_device("GPU-0", leasable=False, problem="In MIG mode")
        devices = (parent, a_device("MIG-0", partition="1g.10gb", parent="GPU-0"))
    worker = a_worker("worker-b", devices, engine="celery")
    host.store.record([WorkerSeen(worker), RequestSubmitted(a_pending("r1"))], EPOCH)
    plan = Plan((a_place("r1", "worker-b", **{devices[-1].id: 1000}),))
    (lease,) = host.store.commit(plan, EPOCH, EPOCH).leases
    host.watch.report(a_failure(worker="worker-b"), "dag.a")
    host.step(60, times=3)
    assert host.states == {"GPU-0": HealthState.PROBATION}
    move_lease(host.store, lease.id, lease.token, LeaseState.RELEASED, host.clock.now())
    host.step(5)
    assert host.held_devices == []


def test_a_device_of_another_schedulers_host_waits_for_that_one(host, burn_in):
    burn_in(PASSED)
    other_host = Host(store=host.store, worker_id="worker-b")
    host.watch.report(a_failure(worker="worker-b"), "dag.a")
    host.step(60, times=3)
    assert (host.states, host.here._runs) == ({"GPU-0": HealthState.PROBATION}, None)
    other_host.step(180)
    other_host.start_burn_in()
    assert host.held_devices == []
    other_host.watch.close()


def test_errors_of_two_schedulers_are_added_and_common_ones_count_once(host):
    host.store.record([WorkerSeen(a_worker("worker-b", engine="celery"))], EPOCH)
    other_host = Host(store=host.store)
    for each in (host, other_host):
        each.watch.report(a_failure("CUBLAS_STATUS_ARCH", worker="worker-b"), "dag.a")
    host.step()
    other_host.step()
    assert host.held_devices == []
    other_host.watch.report(a_failure("CUBLAS_STATUS_ARCH", worker="worker-b"), "dag.b")
    other_host.step()
    assert host.held_devices == ["GPU-0"]
    for _ in range(2):
        host.step(60)
        other_host.step(60)
    assert host.held_devices == []
    assert host.store.health()["worker-b", "GPU-0"].strikes == 1


def test_while_a_device_of_another_host_is_out_the_store_is_asked_when_something_changes_only():
    host = Host(store=CountingStore())
    host.store.record([WorkerSeen(a_worker("worker-b", engine="celery"))], EPOCH)
    host.watch.report(a_failure(worker="worker-b"), "dag.a")
    host.step()
    CountingStore.calls = 0
    host.step(5, times=11)
    assert CountingStore.calls == 0


# -- the way back ------------------------------------------------------------------------------------------------------


def test_after_its_time_a_burn_in_brings_it_back(host, burn_in):
    burn_in(PASSED)
    host.add_xids(79)
    host.step(59)
    assert host.here._runs is None
    host.step(1)
    host.start_burn_in()
    assert (host.held_devices, host.states) == ([], {"GPU-0": HealthState.HEALTHY})
    host.step(7 * 86400)
    assert host.states == {}


def test_a_burn_in_that_fails_keeps_it_out_for_longer(host, burn_in):
    burn_in(FAILED)
    host.fail_and_burn_in()
    health = host.store.health()[KEY]
    assert (health.strikes, health.cause) == (2, "burn-in: a product is wrong")
    assert health.until - health.since == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise SystemExit(7)", "its process ended with code 7 and no answer"),
        ("import time; time.sleep(60)", "no answer"),
    ],
)
def test_a_burn_in_that_dies_or_hangs_has_failed(host, burn_in, monkeypatch, code, cause):
    burn_in("", code)
    monkeypatch.setattr(burn_in_runs, "LIMIT_S", 0.2 if "sleep" in code else 20.0)
    host.fail_and_burn_in()
    assert cause in host.store.health()[KEY].cause


def test_a_device_that_nothing_can_compute_on_is_trusted_untested_and_the_log_says_so(host, burn_in, caplog):
    burn_in(BurnInResult(outcome=BurnInOutcome.UNTESTED, device="cuda:0", found="no torch"))
    host.fail_and_burn_in()
    assert host.held_devices == []
    assert "trusted without a burn-in: no torch" in caplog.text


def test_a_simulated_device_is_tried_with_a_real_computation_on_the_cpu(monkeypatch, caplog):
    monkeypatch.setattr(burn_in_runs, "SECONDS", 0.1)
    caplog.set_level("INFO")
    host = Host(devices=(a_cpu(), a_device("SIM-0", simulated=True)))
    host.watch.report(a_failure("Xid 79 on SIM-0", ("SIM-0",)), "dag.a")
    host.step()
    host.step(60)
    host.start_burn_in(60)
    assert (host.held_devices, host.states) == ([], {"SIM-0": HealthState.HEALTHY})
    assert "passed its burn-in on cpu: multiply float32" in caplog.text


def test_the_process_sees_the_device_alone(host, burn_in):
    code = (
        "import os, sys; found = os.environ['CUDA_VISIBLE_DEVICES'] + ' ' + sys.argv[1];"
        'print(\'{{"outcome": "failed", "device": "", "found": "\' + found + \'"}}\')'
    )
    burn_in("", code)
    host.fail_and_burn_in("GPU-1")
    assert host.store.health()["worker-a", "GPU-1"].cause == "burn-in: GPU-1 cuda:0"


def test_a_burn_in_waits_for_leases_to_end_and_for_people(host, burn_in):
    burn_in(PASSED)
    host.store.record([RequestSubmitted(a_pending("r1"))], EPOCH)
    (lease,) = host.store.commit(Plan((a_place("r1", **{"GPU-0": 500}),)), EPOCH, EPOCH).leases
    drained = Hold("worker-a", "", HoldKind.DRAINED, "new fan", EPOCH, "undrained")
    host.store.record([HoldPlaced(drained)], EPOCH)
    host.add_xids(79)
    host.step(60)
    move_lease(host.store, lease.id, lease.token, LeaseState.RELEASED, host.clock.now())
    host.step(60)
    assert host.here._runs is None
    host.store.record([HoldLifted("worker-a", "", HoldKind.DRAINED)], host.clock.now())
    host.step()
    host.start_burn_in()
    assert host.held_devices == []


def test_one_device_is_tried_at_a_time(host, burn_in):
    burn_in(PASSED)
    host.add_xids(79)
    host.add_xids(79, uuid="GPU-1")
    host.step(60)
    assert host.here._runs.device_id == "GPU-0"
    host.step(0)
    host.start_burn_in()
    assert host.held_devices in (["GPU-1"], [])
    while host.here._runs is not None:
        host.start_burn_in()
    assert host.held_devices == []


def test_each_instance_of_a_gpu_in_mig_mode_is_tested(burn_in, tmp_path):
    parent = a_device("GPU-0", leasable=False, problem="In MIG mode")
    instances = [a_device(f"MIG-{number}", partition="1g.10gb", parent="GPU-0") for number in range(2)]
    host = Host(devices=(parent, *instances))
    log = tmp_path / "tried"
    code = (
        f"import os; open({str(log)!r}, 'a').write(os.environ['CUDA_VISIBLE_DEVICES'] + ' ');"
        'print(\'{{"outcome": "passed", "device": "cuda:0"}}\')'
    )
    burn_in("", code)
    host.fail_and_burn_in()
    assert (log.read_text(), host.held_devices) == ("MIG-0 MIG-1 ", [])


# -- the store ---------------------------------------------------------------------------------------------------------


def test_a_new_scheduler_goes_on_where_the_last_one_stood(host, burn_in):
    burn_in(PASSED)
    host.add_xids(79)
    again = Host(store=host.store)
    again.clock.advance(60)
    again.step()
    again.start_burn_in()
    assert (again.held_devices, again.states) == ([], {"GPU-0": HealthState.HEALTHY})
    assert host.store.health()[KEY].strikes == 1


def test_a_device_that_a_person_undrains_is_used_at_once(host):
    host.add_xids(79)
    undrain = [HoldLifted(*KEY, HoldKind.QUARANTINED), HealthNoted(*KEY, NO_ERRORS)]
    host.store.record(undrain, host.clock.now())
    host.step(60)
    assert (host.held_devices, host.states, host.here._runs) == ([], {}, None)
    host.add_xids(79)
    assert host.store.health()[KEY].strikes == 1


def test_while_nothing_happens_the_store_is_not_asked():
    host = Host(store=CountingStore())
    host.step()
    CountingStore.calls = 0
    host.step(5, times=100)
    host.add_xids(45, 31, 13)
    assert CountingStore.calls == 0


def test_nothing_is_forgotten_while_the_store_is_down(monkeypatch):
    host = Host(store=CountingStore())
    host.step()
    monkeypatch.setattr(CountingStore, "is_down", True)
    with pytest.raises(StoreUnavailable):
        host.add_xids(79)
    monkeypatch.setattr(CountingStore, "is_down", False)
    host.step(5)
    assert host.held_devices == ["GPU-0"]
    assert host.store.health()[KEY] == replace(host.store.health()[KEY], strikes=1, since=EPOCH)


def test_closing_ends_what_runs(host, burn_in):
    burn_in("", "import time; time.sleep(60)")
    host.add_xids(79)
    host.step(60)
    host.step()
    process = host.here._runs._process
    host.watch.close()
    assert (process.wait(600), host.xids.is_closed) == (-9, True)
