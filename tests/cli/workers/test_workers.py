from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.cli.workers.devices import device_report
from hetero_airflow.cli.workers.models import models_json, models_report
from hetero_airflow.cli.workers.top import TopFacts, top_report
from hetero_airflow.cli.workers.workers import NO_WORKERS, _problem_lines, worker_report, workers_at_site, workers_json
from hetero_airflow.errors import SettingsError
from hetero_airflow.model.device import UNCOVERED_KEY, Telemetry
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.model.worker import Inventory, WorkerState
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_worker

NOW = EPOCH + timedelta(hours=1)


def a_snapshot() -> Snapshot:
    busy = a_worker(
        "worker-a",
        (
            a_cpu(cores=8, memory="64GiB"),
            a_device("GPU-0"),
            a_device("GPU-1", index=1),
            a_device("GPU-2", index=2, leasable=False, problem="hot"),
            a_device("GPU-3", index=3, leasable=False, problem="gone"),
            a_device("SIM-0", model="t4", simulated=True),
        ),
        labels={"zone": "a"},
    )
    lost = a_worker(
        "worker-b", (a_device("GPU-0", model="h100"),), host="b.example", state=WorkerState.LOST, runtime={}
    )
    silent = a_worker("worker-c", (a_cpu(),), runtime={}, problems=("nvidia: no answer within 10 s.",))
    new = a_worker("worker-d", (a_cpu(),), runtime={})
    usage = {
        ("worker-a", "cpu"): DeviceUsage(4000, 2**32),
        ("worker-a", "GPU-0"): DeviceUsage(1000, 2**35),
        ("worker-a", "GPU-1"): DeviceUsage(500, 2**34),
        ("worker-a", "GPU-3"): DeviceUsage(1000, 2**34),
    }
    return Snapshot(1, (busy, lost, silent, new), usage)


LAST_SEEN = {
    "worker-a": NOW - timedelta(seconds=3),
    "worker-b": NOW - timedelta(seconds=300),
    "worker-c": NOW - timedelta(seconds=301),
}


def test_devices_are_counted_by_model_with_what_is_leased(render):
    assert (
        render(worker_report(a_snapshot(), LAST_SEEN, {}, NOW, worker_timeout_s=300))
        == """\
WORKER          STATE   LAST SEEN      LEASED / TOTAL
worker-a        online  3 s ago        4 / 8 cpu cores
engine local                           4GiB / 64GiB of host memory
                                       2.5 / 3 nvidia/a100-sxm4-40gb, cooperative shares, 2 devices
                                       not leasable
                                       0 / 1 nvidia/t4 (simulated)
                                       labels zone=a
                                       cuda 12.4, python 3.12.1, torch 2.9.0
worker-b        lost    5 min ago      0 / 1 nvidia/h100
host b.example
engine local
worker-c        online  5 min 1 s ago  0 / 8 cpu cores
engine local                           0B / 64GiB of host memory
worker-d        online  never          0 / 8 cpu cores
engine local                           0B / 64GiB of host memory
Worker worker-c sends no heartbeat, and no scheduler has marked it lost: does a scheduler run?
worker-a: no task gets GPU-2: hot
worker-a: no task gets GPU-3: gone
Worker worker-c may have more devices: nvidia: no answer within 10 s."""
    )


def test_devices_that_get_no_task_are_named_by_cause_unless_a_hold_or_an_instance_says_it():
    used = "Used outside of all leases by process 7 (sleep of root)."
    devices = (
        a_device("GPU-0", leasable=False, problem=used),
        a_device("GPU-1", leasable=False, problem=used),
        a_device("GPU-2", leasable=False, problem="in MIG mode"),
        a_device("MIG-2", parent="GPU-2"),
        a_device("GPU-3", leasable=False, problem="drained"),
    )
    holds = (Hold("worker-a", "GPU-3", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it"),)
    lines = list(_problem_lines(Snapshot(1, (a_worker("worker-a", devices),), holds=holds)))
    assert lines[1:] == [f"worker-a: no task gets GPU-0, GPU-1: {used}"]
    lost = a_worker("worker-a", devices, state=WorkerState.LOST)
    assert list(_problem_lines(Snapshot(1, (lost,)))) == []


def test_without_workers_the_text_says_how_they_are_reported(render):
    assert render(worker_report(Snapshot(0), {}, {}, NOW, 300)) == NO_WORKERS


def test_json_has_readings_and_leased_amounts():
    device = a_device("GPU-0")
    worker = a_worker("worker-a", (device,), labels={"zone": "a"})
    snapshot = Snapshot(1, (worker,), {("worker-a", "GPU-0"): DeviceUsage(500, 2**34)})
    telemetry = {("worker-a", "GPU-0"): Telemetry(device_id="GPU-0", temperature_c=41.0)}
    reading = {name: None for name in Telemetry.model_fields if name != "device_id"} | {"temperature_c": 41.0}
    assert workers_json(snapshot, {"worker-a": EPOCH}, telemetry) == [
        {
            "id": "worker-a",
            "host": "worker-a",
            "engine": "local",
            "runtime": worker.runtime,
            "labels": {"zone": "a"},
            "problems": [],
            "boot_id": "",
            "state": "online",
            "holds": [],
            "last_seen": "2026-01-01T00:00:00+00:00",
            "devices": [
                device.model_dump(mode="json")
                | {
                    "telemetry": reading,
                    "leased_milli": 500,
                    "leased_memory_bytes": 2**34,
                    "capacity_milli": 1000,
                }
            ],
        }
    ]
    assert workers_json(snapshot, {}, {})[0]["last_seen"] is None
    assert workers_json(snapshot, {}, {})[0]["devices"][0]["telemetry"] is None


def test_devices_that_two_workers_report_are_named():
    gpu = a_device("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f")
    workers = tuple(a_worker(id_, (gpu,)) for id_ in ("host-1", "host-2"))
    (text,) = _problem_lines(Snapshot(1, workers))
    assert text == (
        f"host-1/{gpu.id} and host-2/{gpu.id} are one device, so only one worker at a time can lease it. "
        "Run one worker for each device."
    )
    lost = a_worker("host-1", (gpu,), state=WorkerState.LOST)
    assert list(_problem_lines(Snapshot(1, (lost, a_worker("host-2", (gpu,)))))) == []


def a_snapshot_of_sites() -> Snapshot:
    where = {"a": {"hetero/site": "berlin", "hetero/rack": "r7"}, "b": {"hetero/site": "oslo"}, "c": {}}
    workers = tuple(a_worker(name, (a_cpu(),), runtime={}, labels=labels) for name, labels in where.items())
    holds = tuple(Hold(name, "", HoldKind.DRAINED, "moved", EPOCH, "undrained") for name in "ab")
    return Snapshot(1, workers, holds=holds)


def test_all_sites_are_in_one_list(render):
    lines = render(worker_report(a_snapshot_of_sites(), {}, {}, NOW, worker_timeout_s=300)).splitlines()
    assert [line.split("  ")[0].strip() for line in lines[1:]][:8] == [
        "a", "engine local", "site berlin", "rack r7", "b", "engine local", "site oslo", "c",
    ]  # fmt: skip


def test_the_workers_of_one_site_can_be_shown():
    snapshot = a_snapshot_of_sites()
    snapshot_at_site = workers_at_site(snapshot, "berlin")
    assert (
        [worker.id for worker in snapshot_at_site.workers],
        [hold.worker_id for hold in snapshot_at_site.holds],
    ) == (["a"], ["a"])
    with pytest.raises(
        SettingsError, match=r"--site 'paris' can't be used; found workers of 'berlin', 'oslo'\. The label"
    ):
        workers_at_site(snapshot, "paris")
    with pytest.raises(SettingsError, match="found workers of no site"):
        workers_at_site(replace(snapshot, workers=snapshot.workers[2:]), "berlin")


def test_a_lost_worker_with_heartbeats_shows_which_leases_keep_it_out(render):
    heartbeats = {key: WorkerHeartbeat(NOW, frozenset({"r2.2", "r1.1"})) for key in ("worker-a", "worker-b")}
    lines = render(worker_report(a_snapshot(), LAST_SEEN, heartbeats, NOW, worker_timeout_s=300)).splitlines()
    assert [line for line in lines if "comes back when" in line] == [
        "Worker worker-b comes back when no process of the leases r1.1, r2.2 is left on it."
    ]


def test_devices_whose_users_nobody_can_see_are_named():
    worker = a_worker("worker-a", (a_device("GPU-0", details={UNCOVERED_KEY: True}), a_device("GPU-1")))
    assert list(_problem_lines(Snapshot(1, (worker,)))) == [
        "worker-a can't see which processes use GPU-0: see `airflow hetero config --check`"
    ]


UUID = "GPU-5a3c1f2e-8c1b-4a0e-9d52-1f2f3a4b5c6d"


def an_inventory() -> Inventory:
    devices = (
        a_cpu(cores=1, memory="64GiB"),
        a_device(UUID, memory="40GiB", numa_node=0, pci="0000:07:00.0", peers=("GPU-1", "GPU-gone")),
        a_device("GPU-1", index=1, leasable=False, problem="MIG mode is on: lease its instances."),
        a_device("MIG-1", index=2, partition="1g.5gb", memory="5GiB", parent="GPU-1", driver=None, capability=None),
        a_device("SIM-0", model="t4", memory="16GiB", driver=None, capability=None, simulated=True, problem="slow"),
        a_device("GPU-3", index=3, leasable=False),
    )
    telemetry = (
        Telemetry(device_id="cpu", memory_free_bytes=2**35, utilization=0.254),
        Telemetry(
            device_id=UUID, memory_free_bytes=39 * 2**30, utilization=0.03, temperature_c=41.4, power_w=72.5,
            pcie_sent_bytes_per_s=26_700_000, pcie_received_bytes_per_s=1_204_500_000,
        ),
        Telemetry(device_id="GPU-1"),
    )  # fmt: skip
    worker = a_worker("host-a", devices, labels={"zone": "a"})
    return Inventory(worker=worker, telemetry=telemetry, problems=("amd: rocm-smi does not answer",))


def test_each_device_is_shown_with_its_known_properties(render):
    assert (
        render(device_report(an_inventory()), width=100)
        == """\
Worker host-a: 3 accelerators to lease, 1 of them simulated
DEVICE                                    MEMORY      USE            PLACE                  LEASABLE
generic/x86-64 (cpu 0)                    32GiB free  25%                                   yes
cpu                                       of 64GiB
architecture x86-64                       1 core
nvidia/a100-sxm4-40gb (gpu 0)             39GiB free  3%             NUMA 0                 yes
GPU-5a3c1f2e-8c1b-4a0e-9d52-1f2f3a4b5c6d  of 40GiB    41 °C          0000:07:00.0
driver 550.54.15, capability 8.0                      72 W           linked to gpu 1,
                                                      1.20 GB/s in   GPU-gone
                                                      0.03 GB/s out
nvidia/a100-sxm4-40gb (gpu 1)             40GiB                                             no
GPU-1
driver 550.54.15, capability 8.0
nvidia/a100-sxm4-40gb mig-1g.5gb (gpu 2)  5GiB                                              yes
MIG-1
instance of gpu 1
nvidia/t4 (simulated) (gpu 0)             16GiB                                             yes
SIM-0
nvidia/a100-sxm4-40gb (gpu 3)             40GiB                                             no
GPU-3
driver 550.54.15, capability 8.0
Software: cuda 12.4, python 3.12.1, torch 2.9.0
Labels: zone=a
Not leasable: GPU-1: MIG mode is on: lease its instances.
Note on SIM-0: slow
Not leasable: GPU-3: its probe gives no reason
Problem: amd: rocm-smi does not answer"""
    )


def test_a_uuid_stays_whole_on_80_columns(render):
    text = render(device_report(an_inventory()), width=80)
    assert UUID in text
    assert max(len(line) for line in text.splitlines()) <= 90


def test_a_host_without_anything_has_an_empty_table(render):
    bare = Inventory(worker=a_worker("host-a", (), runtime={}))
    assert render(device_report(bare)) == (
        "Worker host-a: 0 accelerators to lease\nDEVICE  MEMORY  USE  PLACE  LEASABLE"
    )


def test_each_known_model_says_what_it_matches_here(render):
    devices = (a_cpu(), a_device("GPU-0", model="a100-sxm4-80gb", memory="80GiB"), a_device("GPU-1", model="a100-pcie"))
    rows = {row["model"]: row for row in models_json([a_worker("w", devices)])}
    assert rows["a100"]["devices"] == {"w": 2}
    assert rows["a100-sxm4-80gb"] == {
        "vendor": "nvidia", "kind": "gpu", "model": "a100-sxm4-80gb", "other_names": ["a100", "a100-80gb"],
        "memory_gib": 80, "devices": {"w": 1},
    }  # fmt: skip
    assert rows["mi300x"]["devices"] == {}
    shown = render(models_report([a_worker("w", devices)]), width=140)
    assert "a100-sxm4-80gb" in shown
    assert "2 devices on 1 worker" in shown
    assert "The database does not answer" in render(models_report(None))


def test_memory_that_no_vendor_reports_is_unknown_and_that_of_the_host_says_so(render):
    devices = (a_device("GPU-0", "a40", None), a_device("GPU-1", "gb10", "119.6GiB", index=1), a_cpu())
    worker = a_worker(devices=devices)
    reading = Telemetry(device_id="GPU-1", memory_free_bytes=100 << 30)
    text = render([*device_report(Inventory(worker=worker, telemetry=(reading,)))], width=160)
    rows = [line.split("  ") for line in text.splitlines() if "/" in line and "gpu" in line]
    assert any("unknown" in row for row in rows)
    assert "119.6GiB (the host's)" in text
    text = render(top_report(TopFacts(Snapshot(1, (worker,)), {("worker-a", "GPU-1"): reading}, [], EPOCH)), width=160)
    assert "19.6GiB of 119.6GiB (the host's)" in text
    assert " unknown " in text
    assert "0B" not in text
