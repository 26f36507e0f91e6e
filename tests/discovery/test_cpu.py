import os
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import cpu
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.errors import ProbeError
from hetero_airflow.model.device import Device, Telemetry

GIB = 1 << 30


@pytest.fixture
def epyc(fixture_text):
    return {
        "cpuinfo": fixture_text("cpu/cpuinfo-epyc.txt"),
        "machine": "x86_64",
        "affinity": [0, 1, 2, 3, 6],
        "nodes": {"node0": "0-1,4-5", "node1": "2-3,6-7"},
        "packages": {"0"},
        "physical_cores": 4,
        "online_cores": 8,
        "clock_khz": None,
        "memory_total": 32 * GIB,
        "memory_available": 20 * GIB,
        "memory_limits": [],
        "cpu_quota": None,
        "load": 2.0,
    }


def test_the_host_is_one_device_with_the_cores_it_may_use(epyc):
    details = {
        "sockets": 1, "numa_nodes": 2, "physical_cores": 4, "logical_cores": 8, "clock_mhz": 2596, "cpu_quota": None,
        "cpu_flags": "",
    }  # fmt: skip
    assert cpu.parse(epyc) == ProbeResult(
        devices=(
            Device(
                id="cpu",
                vendor="amd",
                kind="cpu",
                model="epyc",
                index=0,
                memory_bytes=32 * GIB,
                cores=(0, 1, 2, 3, 6),
                capability="x86-64",
                details=details,
            ),
        ),
        telemetry=(Telemetry(device_id="cpu", memory_free_bytes=20 * GIB, utilization=0.25),),
    )


def test_cores_are_ordered_by_numa_node(epyc):
    facts = epyc | {"affinity": [0, 1, 2, 3], "nodes": {"node1": "0,2", "node0": "1"}}
    assert cpu.parse(facts).devices[0].cores == (1, 0, 2, 3)


def test_a_container_offers_its_own_memory_and_its_quota_of_cores(epyc):
    result = cpu.parse(epyc | {"memory_limits": [(8 * GIB, 3 * GIB), (16 * GIB, GIB)], "cpu_quota": 2.5})
    assert result.devices[0].cores == (0, 1)
    assert result.devices[0].memory_bytes == 8 * GIB
    assert result.telemetry[0].memory_free_bytes == 5 * GIB


def test_a_limit_above_the_host_changes_nothing(epyc):
    result = cpu.parse(epyc | {"memory_limits": [(9223372036854771712, GIB)]})
    assert (result.devices[0].memory_bytes, result.telemetry[0].memory_free_bytes) == (32 * GIB, 20 * GIB)


def test_an_arm_host_without_a_model_name_is_called_by_its_architecture(epyc, fixture_text):
    facts = epyc | {"cpuinfo": fixture_text("cpu/cpuinfo-kunpeng.txt"), "machine": "aarch64"}
    device = cpu.parse(facts).devices[0]
    assert (device.vendor, device.model, device.details["clock_mhz"]) == ("hisilicon", "aarch64", None)
    assert (device.capability, cpu.parse(epyc).devices[0].capability) == ("aarch64", "x86-64")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "xeon"),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "xeon-platinum-8375c"),
        ("AMD EPYC 7763 64-Core Processor", "epyc-7763"),
        ("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", "core-i7-9750h"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "ryzen-9-7950x"),
    ],
)
def test_model_names_are_short_words(epyc, name, model):
    facts = epyc | {"cpuinfo": f"vendor_id : x\nmodel name : {name}\n"}
    assert cpu.parse(facts).devices[0].model == model


def test_a_host_without_memory_is_an_error_that_names_the_values(epyc):
    with pytest.raises(ProbeError) as caught:
        cpu.parse(epyc | {"memory_total": None})
    assert caught.value.found == "5 cores and 0 bytes"


@given(st.text(max_size=500), st.dictionaries(st.text(max_size=8), st.text(max_size=20)), st.text(max_size=20))
def test_no_text_of_the_kernel_stops_the_probe(cpuinfo, nodes, clock):
    facts = {"affinity": [0, 1], "memory_total": GIB, "cpuinfo": cpuinfo, "nodes": nodes, "clock_khz": clock}
    assert set(cpu.parse(facts).devices[0].cores) == {0, 1}


def test_this_host_matches_the_kernels_values():
    device = cpu.probe().devices[0]
    assert set(device.cores) <= os.sched_getaffinity(0)
    assert 0 < device.memory_bytes <= psutil.virtual_memory().total


def test_affinity_is_respected():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpu.probe().devices[0].cores == (min(before),)
    finally:
        os.sched_setaffinity(0, before)


def test_a_missing_sys_leaves_facts_out(tmp_path: Path):
    facts = cpu.read(tmp_path)
    assert (facts["cpuinfo"], facts["nodes"], facts["clock_khz"], facts["memory_limits"]) == ("", {}, None, [])
    assert cpu.parse(facts).devices[0].vendor == "generic"


def test_the_flags_that_make_types_fast_are_reported(epyc, fixture_text):
    def flags(cpuinfo):
        return cpu.parse(epyc | {"cpuinfo": cpuinfo}).devices[0].details["cpu_flags"]

    assert flags("flags\t\t: fpu avx2 avx512_vnni amx_bf16 avx512_bf16 amx_tile") == "avx512_bf16 amx_bf16 avx512_vnni"
    assert flags(fixture_text("cpu/cpuinfo-epyc.txt")) == ""
    assert flags(fixture_text("cpu/cpuinfo-kunpeng.txt")) == ""
    assert flags("Features\t: fp asimd bf16 i8mm sve") == "bf16 i8mm"
    assert flags("processor : 0") is None
