from __future__ import annotations

from hetero_airflow.cli.workers.devices import device_report
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.worker import Inventory
from hetero_airflow.testing import a_cpu, a_device, a_worker

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
                                          1 core
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
