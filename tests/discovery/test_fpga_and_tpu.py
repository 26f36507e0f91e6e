"""Devices that are found on the PCI bus: FPGAs, and Google's TPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import amd, fpga, google
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.unprobed import unprobed
from hetero_airflow.model.device import Device, matches_model, model_tokens

GIB = 1 << 30


def test_alveo_cards_are_recognised_by_their_user_function(fixture_tree):
    assert fpga.parse(*fpga.read(fixture_tree("xilinx/alveo-u250.json"))) == ProbeResult(
        devices=(
            Device(
                id="0000:65:00.1",
                vendor="xilinx",
                kind="fpga",
                model="alveo-u250",
                index=0,
                memory_bytes=64 * GIB,
                driver="2.16.204",
                numa_node=1,
                pci="0000:65:00.1",
                details={"driver_name": "xocl", "regions": None},
            ),
            Device(
                id="0000:b3:00.1",
                vendor="xilinx",
                kind="fpga",
                model="alveo-u280",
                index=1,
                memory_bytes=8 * GIB,
                leasable=False,
                problem="No driver is bound to it; load xocl or dfl-pci.",
                pci="0000:b3:00.1",
                details={"driver_name": None, "regions": None},
            ),
        )
    )


def test_an_intel_card_is_one_device_with_its_regions_and_manager(fixture_tree):
    (card,) = fpga.parse(*fpga.read(fixture_tree("intel/pac-d5005.json"))).devices
    assert card == Device(
        id="0000:3b:00.0",
        vendor="intel",
        kind="fpga",
        model="pac-d5005-stratix-10",
        index=0,
        memory_bytes=32 * GIB,
        numa_node=0,
        pci="0000:3b:00.0",
        details={"driver_name": "dfl-pci", "regions": 1},
    )
    assert matches_model("stratix-10", model_tokens(card.model))


def test_a_system_on_a_chip_is_recognised_by_its_manager(fixture_tree):
    assert fpga.parse(*fpga.read(fixture_tree("xilinx/zynqmp.json"))) == ProbeResult(
        devices=(
            Device(
                id="fpga0",
                vendor="xilinx",
                kind="fpga",
                model="zynqmp",
                index=0,
                memory_bytes=0,
                details={"state": "operating"},
            ),
        )
    )


def test_a_host_without_fpgas_is_an_empty_result(tmp_path):
    assert fpga.parse(*fpga.read(tmp_path)) == ProbeResult()


card = st.fixed_dictionaries(
    {"pci": st.text(max_size=20), "vendor": st.just("0x10ee"), "device": st.sampled_from(["0x5005", "x"])},
    optional={"driver": st.text(), "driver_version": st.text(), "numa_node": st.text()},
)
manager = st.fixed_dictionaries({"id": st.text(), "name": st.text()}, optional={"state": st.text(), "path": st.text()})


@given(st.lists(card), st.lists(manager))
def test_no_text_of_the_kernel_stops_the_parser_of_cards(cards, managers):
    cards = [*cards, {"pci": "0000:65:00.1", "vendor": "0x10ee", "device": "0x5005"}]
    assert "0000:65:00.1" in {device.id for device in fpga.parse(cards, managers).devices}


def test_a_v5e_host_with_one_of_two_chips_in_the_container(fixture_tree):
    environment = {"TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_ID": "0"}
    details = {"accelerator_type": "v5litepod-8", "topology": None, "worker_id": "0"}
    common = {"vendor": "google", "kind": "tpu", "model": "v5e", "memory_bytes": 16 * GIB}
    assert google.parse(google.read(fixture_tree("google/v5e.json")), environment) == ProbeResult(
        devices=(
            Device(
                id="0000:00:04.0",
                index=0,
                numa_node=0,
                pci="0000:00:04.0",
                details={"node": "/dev/vfio/0", **details},
                **common,
            ),
            Device(
                id="0000:00:05.0",
                index=1,
                numa_node=1,
                pci="0000:00:05.0",
                leasable=False,
                problem="Its device node is missing; give the container /dev/vfio or /dev/accel*.",
                details={"node": None, **details},
                **common,
            ),
        )
    )


def test_chips_with_accel_nodes_have_the_number_of_the_node(fixture_tree):
    devices = google.parse(google.read(fixture_tree("google/v4.json")), {}).devices
    assert [(d.model, d.index, d.numa_node, d.details["node"]) for d in devices] == [
        ("v4", 1, None, "/dev/accel1"),
        ("v3", 0, None, "/dev/accel0"),
    ]


def test_the_two_functions_of_a_tpu7x_chip_are_one_device(fixture_tree):
    tree = fixture_tree("google/tpu7x.json")
    result = google.parse(google.read(tree), {"TPU_ACCELERATOR_TYPE": "tpu7x-8"})
    assert [(d.id, d.index, d.memory_bytes, d.leasable) for d in result.devices] == [
        (f"0000:00:{4 + 2 * n:02x}.0", n, 192 * GIB, True) for n in range(4)
    ]
    (tree / "dev/vfio/1").unlink()
    assert [device.leasable for device in google.parse(google.read(tree), {}).devices] == [False, True, True, True]
    half = google.parse(google.read(tree)[1:], {})
    assert not any(device.leasable for device in half.devices)
    assert half.devices[0].problem.startswith("A PCI function of a chip is missing")


def test_an_unknown_device_is_a_problem_if_it_may_be_an_accelerator(make_tree):
    tree = make_tree(
        {"0000:00:04.0": ("0x1ae0", "0x0099", "0x120000"), "0000:00:05.0": ("0x1ae0", "0x0042", "0x020000"),
         "0000:65:00.0": ("0x10ee", "0x5700", "0x120000"), "0000:65:00.1": ("0x10ee", "0x5701", "0x120000"),
         "0000:66:00.0": ("0x10ee", "0x9038", "0x058000")}
    )  # fmt: skip
    (tpu_line,) = google.parse(google.read(tree), {}).problems
    assert tpu_line.startswith("PCI id 0x0099:None at 0000:00:04.0 is no known TPU; ")
    (card_line,) = fpga.parse(*fpga.read(tree)).problems
    assert card_line.startswith("PCI id 0x10ee:0x5701:None at 0000:65:00.1 is no known FPGA card; ")


@pytest.fixture
def make_tree(tmp_path):
    """A folder with PCI devices: address → (vendor, device, class)."""

    def make(devices):
        for address, values in devices.items():
            folder = tmp_path / "sys/bus/pci/devices" / address
            folder.mkdir(parents=True)
            for name, value in zip(("vendor", "device", "class"), values, strict=True):
                (folder / name).write_text(f"{value}\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("devices", "makers"),
    [
        (
            {"0000:03:00.0": ("0x8086", "0xe20b", "0x030000"), "0000:04:00.0": ("0x8086", "0x0bd5", "0x038000")},
            ["intel"],
        ),
        ({"0000:00:02.0": ("0x8086", "0x4680", "0x030000")}, []),
        ({"0000:02:00.0": ("0x1a03", "0x2000", "0x030000"), "0000:03:00.0": ("0x102b", "0x0538", "0x030000")}, []),
        ({"0000:00:0b.0": ("0x8086", "0x7d1d", "0x120000"), "0000:81:00.0": ("0x8086", "0x1572", "0x020000")}, []),
        ({"0000:b3:00.0": ("0x1da3", "0x1020", "0x120000")}, ["habana"]),
        ({"0000:00:1e.0": ("0x1d0f", "0x7164", "0x088000"), "0000:00:05.0": ("0x1d0f", "0xec20", "0x020000")}, ["aws"]),
        (
            {"0000:33:00.0": ("0x1d94", "0x6211", "0x038000"), "0000:00:00.0": ("0x1d94", "0x1450", "0x060000")},
            ["hygon"],
        ),
        ({}, []),
    ],
)
def test_accelerators_without_a_probe_are_a_line_and_display_adapters_are_none(make_tree, devices, makers):
    results = unprobed(make_tree(devices))
    assert list(results) == makers
    assert all("has no probe, so none is offered" in result.problems[0] for result in results.values())


def test_the_tool_of_a_hygon_dcu_is_enough_for_a_line(make_tree, put_tool):
    tree = make_tree({})
    put_tool("hy-smi", "exit 0")
    assert unprobed(tree) == {}
    assert amd.probe() == ProbeResult()
    (tree / "dev").mkdir()
    (tree / "dev/kfd").touch()
    assert list(unprobed(tree)) == ["hygon"]


def test_an_environment_without_a_chip_is_a_problem():
    (problem,) = google.parse([], {"TPU_ACCELERATOR_TYPE": "v4-8"}).problems
    assert problem.startswith("TPU_ACCELERATOR_TYPE=v4-8, but no TPU is on the PCI bus")


def test_a_host_without_tpus_is_an_empty_result(tmp_path):
    assert google.parse(google.read(tmp_path), {}) == ProbeResult()


@given(
    st.lists(
        st.fixed_dictionaries(
            {"pci": st.text(max_size=20), "device": st.sampled_from(["0x0063", "0x0027", "x"])},
            optional={"node": st.text(), "numa_node": st.text(), "subsystem_device": st.text()},
        )
    ),
    st.text(),
)
def test_no_text_of_the_kernel_stops_the_parser_of_chips(chips, accelerator):
    chips = [*chips, {"pci": "0000:00:04.0", "device": "0x0063"}]
    assert google.parse(chips, {"TPU_ACCELERATOR_TYPE": accelerator}).devices[-1].id == "0000:00:04.0"
