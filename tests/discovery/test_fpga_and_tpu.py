"""Devices that are found on the PCI bus: FPGAs, and Google's TPUs."""

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import fpga, google
from hetero_airflow.discovery.probe import ProbeResult
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
