import sys
from enum import IntEnum
from types import SimpleNamespace

import pytest

from hetero_airflow.discovery import amd
from hetero_airflow.discovery.amd_library import read_library
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.model.device import Device, Telemetry

MIB = 1 << 20


class AmdSmiException(Exception):
    pass


class LinkType(IntEnum):
    AMDSMI_LINK_TYPE_XGMI = 2


def a_library(**calls):
    """amdsmi 7.0 with two linked MI210, each call in the form its source gives the answer."""
    shut_down = []

    def hotspot(handle, sensor, metric):
        assert (sensor, metric) == ("hotspot", "current")
        return 45

    given = {
        "AmdSmiException": AmdSmiException,
        "AmdSmiLinkType": LinkType,
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT="hotspot"),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT="current"),
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: shut_down.append(True),
        "amdsmi_get_processor_handles": lambda: [0, 1],
        "amdsmi_get_gpu_asic_info": lambda handle: {
            "market_name": "AMD Instinct MI210",
            "asic_serial": f"0x000000000000000{handle + 1}",
            "num_compute_units": 104,
            "target_graphics_version": "gfx90a",
        },
        "amdsmi_get_gpu_device_bdf": lambda handle: f"0000:2{handle}:00.0",
        "amdsmi_get_pcie_info": lambda handle: {
            "pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 4, "slot_type": "OAM"}
        },
        "amdsmi_get_gpu_vram_usage": lambda handle: {"vram_total": 65520, "vram_used": 20},
        "amdsmi_get_gpu_driver_info": lambda handle: {"driver_name": "amdgpu", "driver_version": "6.16.13"},
        "amdsmi_topo_get_numa_node_number": lambda handle: 1,
        "amdsmi_get_gpu_activity": lambda handle: {"gfx_activity": 12, "umc_activity": 0, "mm_activity": "N/A"},
        "amdsmi_get_power_info": lambda handle: {"current_socket_power": "N/A", "average_socket_power": 41},
        "amdsmi_get_temp_metric": hotspot,
        "amdsmi_get_gpu_total_ecc_count": lambda handle: {"correctable_count": 5, "uncorrectable_count": 2},
        "amdsmi_topo_get_link_type": lambda a, b: {"hops": 1, "type": 2},
        "shut_down": shut_down,
    }
    return SimpleNamespace(**given | calls)


@pytest.fixture
def install(monkeypatch):
    return lambda library: monkeypatch.setitem(sys.modules, "amdsmi", library)


def test_the_library_gives_the_same_as_the_tool(install):
    library = a_library()
    install(library)
    result = amd.probe()
    assert library.shut_down == [True]
    assert result == ProbeResult(
        devices=tuple(
            Device(
                id=f"GPU-000000000000000{n + 1}",
                vendor="amd",
                kind="gpu",
                model="instinct-mi210",
                index=n,
                memory_bytes=65520 * MIB,
                driver="6.16.13",
                capability="gfx90a",
                numa_node=1,
                pci=f"0000:2{n}:00.0",
                peers=(f"GPU-000000000000000{2 - n}",),
                details={"pcie_generation": 4, "pcie_width": 16, "compute_units": 104, "compute_partition": None},
            )
            for n in (0, 1)
        ),
        telemetry=tuple(
            Telemetry(
                device_id=f"GPU-000000000000000{n + 1}",
                memory_free_bytes=65500 * MIB,
                utilization=0.12,
                temperature_c=45,
                power_w=41,
                ecc_errors=2,
            )
            for n in (0, 1)
        ),
    )


def test_a_call_that_fails_leaves_its_field_out(install):
    def fail(*arguments):
        raise AmdSmiException

    library = a_library(amdsmi_get_gpu_vram_usage=fail, amdsmi_get_power_info=fail, amdsmi_topo_get_link_type=fail)
    del library.amdsmi_get_gpu_activity
    install(library)
    result = amd.probe()
    assert [(d.memory_bytes, d.peers) for d in result.devices] == [(0, ()), (0, ())]
    assert [(t.memory_free_bytes, t.power_w, t.utilization) for t in result.telemetry] == [(None, None, None)] * 2


def test_the_tool_is_used_if_the_library_finds_no_driver(install):
    def fail():
        raise AmdSmiException

    install(a_library(amdsmi_init=fail))
    assert read_library() is None


def test_the_tool_is_used_if_the_library_lacks_its_shared_object(tmp_path, monkeypatch):
    # The real one raises KeyError('libamd_smi.so') while it is imported (amdsmi 7.0.2).
    (tmp_path / "amdsmi_without_object.py").write_text("raise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert read_library("amdsmi_without_object") is None
    assert read_library("amdsmi_that_is_not_there") is None
