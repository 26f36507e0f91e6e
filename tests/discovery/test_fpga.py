from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import fpga
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
def test_no_text_of_the_kernel_stops_the_parser(cards, managers):
    cards = [*cards, {"pci": "0000:65:00.1", "vendor": "0x10ee", "device": "0x5005"}]
    assert "0000:65:00.1" in {device.id for device in fpga.parse(cards, managers).devices}
