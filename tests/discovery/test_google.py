from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import google
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.model.device import Device

GIB = 1 << 30


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
def test_no_text_of_the_kernel_stops_the_parser(chips, accelerator):
    chips = [*chips, {"pci": "0000:00:04.0", "device": "0x0063"}]
    assert google.parse(chips, {"TPU_ACCELERATOR_TYPE": accelerator}).devices[-1].id == "0000:00:04.0"
