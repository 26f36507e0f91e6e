import json
import sys
from contextlib import suppress
from enum import IntEnum
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import amd
from hetero_airflow.discovery.amd_library import read_library
from hetero_airflow.discovery.amd_topology import read_nodes
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.errors import ProbeError
from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.model.device import Device, Telemetry, matches_model, model_tokens
from hetero_airflow.model.devices.memory import SET_ASIDE_KEY, is_integrated
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.testing import a_worker

MIB = 1 << 20


def test_a_radeon_of_rocm_6(fixture_text):
    static, metric = (json.loads(fixture_text(f"amd/{name}-rx6600.json")) for name in ("static", "metric"))
    details = {"pcie_generation": 4, "pcie_width": 16, "compute_units": None, "compute_partition": None}
    assert amd.parse(static, metric) == ProbeResult(
        devices=(
            Device(
                id="0000:0b:00.0",
                vendor="amd",
                kind="gpu",
                model="navi-23-radeon-rx-6600-6600-xt",
                index=0,
                memory_bytes=8176 * MIB,
                driver="7.0.0",
                numa_node=0,
                pci="0000:0b:00.0",
                details=details,
            ),
        ),
        telemetry=(
            Telemetry(
                device_id="0000:0b:00.0",
                memory_free_bytes=7974 * MIB,
                utilization=0.01,
                temperature_c=37,
                power_w=6,
                ecc_errors=0,
            ),
        ),
    )


def test_an_instinct_of_rocm_7_with_warnings_before_its_json(fixture_text):
    static = amd.parse_json(fixture_text("amd/static-mi210.txt"))
    static["gpu_data"][0]["bus"]["bdf"] = "0000:23:00.0"  # the source left it out
    result = amd.parse(static, None)
    details = {"pcie_generation": 4, "pcie_width": 16, "compute_units": 104, "compute_partition": None}
    assert result == ProbeResult(
        devices=(
            Device(
                id="0000:23:00.0",
                pci="0000:23:00.0",
                vendor="amd",
                kind="gpu",
                model="instinct-mi210",
                index=0,
                memory_bytes=65520 * MIB,
                driver="6.14.0",
                capability="gfx90a",
                numa_node=1,
                details=details,
            ),
        )
    )


def test_metrics_of_rocm_7_are_joined_by_the_number_of_the_gpu(fixture_text):
    metric = json.loads(fixture_text("amd/metric-r9700.json"))
    static = [{"gpu": 0, "bus": {"bdf": "0000:03:00.0"}}, {"gpu": 1, "bus": {"bdf": "0000:06:00.0"}}]
    assert amd.parse(static, metric).telemetry == (
        Telemetry(
            device_id="0000:03:00.0",
            memory_free_bytes=10126 * MIB,
            utilization=0.91,
            temperature_c=63,
            power_w=300,
            ecc_errors=0,
        ),
    )


def a_gpu(number, bdf, **fields):
    size = {"size": {"value": 65520, "unit": "MB"}}
    return {"gpu": number, "asic": {"market_name": "AMD Instinct MI210"}, "bus": {"bdf": bdf}, "vram": size} | fields


def a_node(location_id, unique_id=0, **fields):
    return {"simd_count": 416, "location_id": location_id, "unique_id": unique_id} | fields


@pytest.mark.parametrize(
    ("kfd", "ids", "indexes"),
    [
        (None, ["0000:03:00.0", "0000:06:00.0"], [0, 1]),  # no id that the KFD confirms
        ([a_node(0x600), a_node(0x300)], ["0000:03:00.0", "0000:06:00.0"], [1, 0]),  # ROCr counts in another order
        ([a_node(0x300, 5), a_node(0x600, 5)], ["0000:03:00.0", "0000:06:00.0"], [0, 1]),  # not unique
        ([a_node(0x300, 2**63), a_node(0x600)], ["GPU-8000000000000000", "0000:06:00.0"], [0, 1]),
        ([a_node(0, simd_count=0), a_node(0x300, 1), a_node(0x600, 2)],
         ["GPU-0000000000000001", "GPU-0000000000000002"], [0, 1]),
    ],
)  # fmt: skip
def test_a_gpu_has_the_number_of_rocr_and_an_id_that_rocr_knows(kfd, ids, indexes):
    serial = {"asic": {"market_name": "AMD Instinct MI210", "asic_serial": "0x4162405E51BB99B0"}}
    result = amd.parse([a_gpu(0, "0000:03:00.0", **serial), a_gpu(1, "0000:06:00.0")], [], kfd=kfd)
    assert [device.id for device in result.devices] == ids
    assert [device.index for device in result.devices] == indexes
    assert [device.leasable for device in result.devices] == [True, True]


def test_a_gpu_that_the_kfd_does_not_show_is_not_leased_and_one_that_only_the_kfd_shows_is_a_problem():
    result = amd.parse([a_gpu(0, "0000:03:00.0")], [], kfd=[a_node(0x600), a_node(0x900)])
    (device,) = result.devices
    assert (device.leasable, device.problem) == (
        False,
        "The kernel's KFD shows no GPU with its address, so ROCr does not see it; look at rocminfo.",
    )
    assert result.problems == ("The kernel's KFD shows 2 GPUs, but amd-smi only 1; run both as this user.",)


@pytest.mark.parametrize("bits", [0, 28])
def test_partitions_of_a_chip_are_no_whole_gpus_and_share_its_memory(fixture_text, bits):
    static, metric = (json.loads(fixture_text(f"amd/{name}-mi300x-dpx.json")) for name in ("static", "metric"))
    kfd = [a_node(0x500 | n << bits, 0xC58123456789ABC + n, drm_render_minor=128 + n) for n in (0, 1)]
    result = amd.parse(static, metric, (), kfd)
    assert [(d.id, d.model, d.partition, d.parent, d.memory_bytes, d.index) for d in result.devices] == [
        ("GPU-0c58123456789abc", "instinct-mi300x-oam", "dpx-nps1", "chip 0000:05:00", 98296 * MIB, 0),
        ("GPU-0c58123456789abd", "instinct-mi300x-oam", "dpx-nps1", "chip 0000:05:00", 98296 * MIB, 1),
    ]
    assert [d.details["node"] for d in result.devices] == ["/dev/dri/renderD128", "/dev/dri/renderD129"]
    assert [t.memory_free_bytes for t in result.telemetry] == [None, None]  # amd-smi gives that of the whole chip
    assert str(result.devices[0]) == "amd/instinct-mi300x-oam dpx-nps1"
    ok, reason = check_worker(DeviceRequest.parse("mi300x").alternatives[0], a_worker(devices=result.devices))
    assert (ok, reason.code, reason.asked) == (False, ReasonCode.PARTITION, "amd/mi300x, not a partition")
    request = DeviceRequest.parse({"vendor": "amd", "model": "mi300x", "partition": "dpx-nps1", "count": 2})
    assert check_worker(request.alternatives[0], a_worker(devices=result.devices)) == (True, None)
    assert str(request.alternatives[0]) == "2 × amd/mi300x dpx-nps1"


@pytest.mark.parametrize(
    ("chip", "compute", "memory", "size", "partition", "memory_mib"),
    [
        ("MI300X", "SPX", "NPS1", 196592, None, 196592),
        ("MI300X", "N/A", "N/A", 196592, None, 196592),
        ("MI300X", "CPX", "NPS4", 49152, "cpx-nps4", 24576),  # amd-smi gives the memory of a quarter
        ("MI300X", "CPX", "NPS4", 24574, "cpx-nps4", 24574),
        ("MI300X", "CPX_NPS1", "N/A", 196592, "cpx-nps1", 24574),
        ("MI308X", "CPX", "NPS1", 196592, "cpx-nps1", 49148),
        ("MI308X", "CPX", "NPS4", 49148, "cpx-nps4", 49148),
        ("MI300A", "CPX", "NPS1", 131072, "cpx-nps1", 21845 + 1 / 3),
        ("MI399X", "CPX", "NPS1", 196592, "cpx-nps1", 24574),
    ],
)
def test_the_mode_and_the_chip_decide_what_a_partition_has(chip, compute, memory, size, partition, memory_mib):
    gpu = a_gpu(
        0, "0000:05:00.0", asic={"market_name": f"AMD Instinct {chip}"}, vram={"size": size},
        partition={"compute_partition": compute, "memory_partition": memory},
    )  # fmt: skip
    (device,) = amd.parse([gpu], []).devices
    assert (device.partition, device.memory_bytes, device.leasable) == (partition, int(memory_mib * MIB), True)


@pytest.mark.parametrize("partition", [{}, {"compute_partition": "SPX"}, {"compute_partition": "EPX"}])
def test_gpus_that_share_a_chip_in_an_unknown_way_are_not_leased(partition):
    result = amd.parse([a_gpu(n, f"0000:03:00.{n}", partition=partition) for n in (0, 1)], [])
    assert [device.leasable for device in result.devices] == [False, False]
    assert "2 GPUs are on its chip" in result.devices[0].problem


@pytest.mark.parametrize(
    ("asic", "vram", "kfd"),
    [
        ({"target_graphics_version": "gfx1036"}, {}, None),
        ({}, {"type": "LPDDR5"}, None),
        ({}, {}, [a_node(0xE00, gfx_target_version=100306)]),
    ],
)
def test_an_integrated_gpu_has_no_memory_of_its_own(asic, vram, kfd):
    asic = {"market_name": "AMD Radeon Graphics"} | asic
    vram = {"size": {"value": 512, "unit": "MB"}} | vram
    result = amd.parse(
        [a_gpu(0, "0000:0e:00.0", asic=asic, vram=vram)],
        [{"gpu": 0, "mem_usage": {"free_vram": {"value": 300, "unit": "MB"}}}], kfd=kfd,
    )  # fmt: skip
    (device,) = result.devices
    assert (device.memory_bytes, device.leasable, is_integrated(device)) == (None, True, True)
    assert device.details[SET_ASIDE_KEY] == 512 * MIB
    assert result.telemetry[0].memory_free_bytes is None


def test_a_partition_of_a_chip_without_a_figure_has_unknown_memory():
    partition = {"compute_partition": "CPX", "memory_partition": "NPS4"}
    asic = {"market_name": "AMD Instinct MI300X"}
    gpu = a_gpu(0, "0000:05:00.0", asic=asic, vram={"size": "N/A"}, partition=partition)
    result = amd.parse([gpu], [{"gpu": 0, "mem_usage": {"free_vram": 1000}}])
    assert (result.devices[0].partition, result.devices[0].memory_bytes) == ("cpx-nps4", None)
    assert result.telemetry[0].memory_free_bytes is None


def test_the_keys_of_rocm_5_are_known(fixture_text):
    (device,) = amd.parse(json.loads(fixture_text("amd/static-mi250-rocm57.json")), []).devices
    assert (device.memory_bytes, device.driver, device.leasable) == (65520 * MIB, "6.2.4", True)


@pytest.mark.parametrize(
    ("static", "problem"),
    [
        ({"gpus": []}, "amd-smi's answer has no list of GPUs, so which there are is unknown; "),
        ([a_gpu(0, "0000:03:00.0"), {"card": 1}], "1 of 2 entries of amd-smi are not understood; "),
        ([a_gpu(0, "0000:03:00.0", vram={"bytes": 1})], "GPU 0: amd-smi's entry has no memory that is understood; "),
        ([a_gpu(0, "0000:03:00.0", vram={"size": {"value": 1, "unit": "blocks"}})],
         "GPU 0: amd-smi's entry has no memory in a known unit that is understood; "),
        ([{"gpu": 0}], "GPU 0: amd-smi's entry has no name and no PCI address and no memory that is understood; "),
    ],
)  # fmt: skip
def test_an_entry_that_is_not_understood_is_a_problem_and_not_leased(static, problem):
    result = amd.parse(static, [])
    assert result.problems[0].startswith(problem)
    assert not any(device.leasable for device in result.devices if device.problem)


def test_the_nodes_of_the_kfd_are_read_in_the_order_of_their_numbers(tmp_path):
    for number, text in {10: "simd_count 416\nunique_id 7\nbroken", 2: "simd_count 0\n", 3: ""}.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(text)
    (tmp_path / "11").mkdir()
    assert read_nodes(tmp_path) == [{"simd_count": 0}, {"simd_count": 416, "unique_id": 7}]


def test_xgmi_links_make_peers(fixture_text):
    static = [{"gpu": 0, "bus": {"bdf": "0000:01:00.0"}}, {"gpu": 1, "bus": {"bdf": "0001:01:00.0"}}]
    result = amd.parse(static, [], json.loads(fixture_text("amd/topology-mi300.json")))
    assert [device.peers for device in result.devices] == [("0001:01:00.0",), ("0000:01:00.0",)]


@pytest.mark.parametrize(
    ("market_name", "product_name", "device_word"),
    [
        ("AMD Instinct MI300X", "AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Radeon Graphics", "AMD Instinct MI325X", "mi325x"),
        ("N/A", "AMD Instinct MI350X OAM", "mi350x"),
        ("AMD Radeon RX 7900 XTX", "N/A", "rx-7900-xtx"),
    ],
)
def test_models_match_the_words_of_the_catalogue(market_name, product_name, device_word):
    static = [{"gpu": 0, "asic": {"market_name": market_name}, "board": {"product_name": product_name}}]
    assert matches_model(device_word, model_tokens(amd.parse(static, []).devices[0].model))


def test_the_tool_is_used_without_the_library(fixture_text, tmp_path, put_tool):
    for name in ("static", "metric"):
        (tmp_path / f"{name}.json").write_text(fixture_text(f"amd/{name}-rx6600.json"))
    put_tool("amd-smi", f'[ "$2" = --json ] && exec cat {tmp_path}/$1.json')
    result = amd.probe()
    assert [device.id for device in result.devices] == ["0000:0b:00.0"]
    assert [reading.power_w for reading in result.telemetry] == [6]


def test_no_library_and_no_tool_is_an_empty_result(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(amd, "NODES", f"{tmp_path}/kfd")
    assert amd.probe() == ProbeResult()
    (tmp_path / "kfd").touch()
    line = (
        f"{tmp_path}/kfd exists, but amd-smi does not, so its devices can't be read; install the package amd-smi-lib."
    )
    assert amd.probe() == ProbeResult(problems=(line,))


def test_a_tool_without_json_is_an_error_that_quotes_it():
    with pytest.raises(ProbeError) as caught:
        amd.parse_json("ERROR:root:Unable to detect any GPU devices, check amdgpu version\n")
    assert "Unable to detect any GPU devices" in caught.value.found


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["gpu", "gpu_data", "asic", "market_name", "bus", "bdf", "vram", "size", "links", "value"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


@given(json_values, json_values, json_values)
def test_no_json_stops_the_parser(static, metric, topology):
    result = amd.parse(static, metric, topology)
    assert {t.device_id for t in result.telemetry} <= {d.id for d in result.devices}


@given(st.text(alphabet=st.sampled_from('[]{}":,0123456789eE.-+ \ngpuN/A')))
def test_every_unreadable_text_is_a_probe_error(text):
    with suppress(ProbeError):
        assert isinstance(amd.parse(amd.parse_json(text), []), ProbeResult)


@pytest.mark.parametrize("text", ["[" * 200_000, "[" + "9" * 10_000 + "]"])
def test_json_that_python_refuses_is_a_probe_error(text):
    with pytest.raises(ProbeError):
        amd.parse_json(text)


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


def test_the_library_gives_the_same_as_the_tool(install, monkeypatch):
    library = a_library()
    install(library)
    monkeypatch.setattr(amd, "read_nodes", lambda: [a_node(0x2000, 1), a_node(0x2100, 2)])
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
    assert [(d.memory_bytes, d.peers) for d in result.devices] == [(None, ()), (None, ())]
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
