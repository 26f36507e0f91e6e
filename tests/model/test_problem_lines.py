import pytest

from hetero_airflow.model.problem_lines import EXCLUDE_PREFIX, concerns, concerns_device
from hetero_airflow.testing import a_cpu, a_device


@pytest.mark.parametrize(
    ("line", "vendor", "kind", "is_concerned"),
    [
        ("nvidia: GPU 0 does not answer", "nvidia", "gpu", True),
        ("nvidia: GPU 0 does not answer", "amd", "gpu", False),
        ("nvidia: GPU 0 does not answer", None, "gpu", True),
        ("nvidia: GPU 0 does not answer", None, "npu", False),
        ("nvidia: GPU 0 does not answer", None, None, True),
        ("fpga: PCI id 0x10ee:0x1 is no known FPGA card", "xilinx", "fpga", True),
        ("fpga: PCI id 0x10ee:0x1 is no known FPGA card", "nvidia", "gpu", False),
        ("intel: 1 × Intel GPU", "intel", "gpu", True),
        ("intel: 1 × Intel GPU", None, "gpu", True),
        ("intel: 1 × Intel GPU", "nvidia", "gpu", False),
        ("habana: 8 × Intel Gaudi accelerator", "ascend", "npu", False),
        ("habana: 8 × Intel Gaudi accelerator", None, "hpu", True),
        ("aws: 2 × AWS Neuron device", None, "npu", False),
        ("acme: the node offers 1 of acme.io/npu", "nvidia", "gpu", False),
        ("acme: the node offers 1 of acme.io/npu", "acme", "npu", True),
        ("cpu: no answer", "intel", "cpu", True),
        ("acme: raised OSError", "nvidia", "gpu", True),
        ("the node is not ready: unknown", "nvidia", "gpu", True),
        (f"{EXCLUDE_PREFIX}: no device matches t4", "nvidia", "gpu", False),
    ],
)
def test_a_line_concerns_the_devices_of_its_vendor_or_probe(line, vendor, kind, is_concerned):
    assert concerns(line, vendor, kind) == is_concerned


def test_only_the_line_of_the_simulation_concerns_a_simulated_device():
    real, simulated = a_device("GPU-0"), a_device("simulated-0", simulated=True)
    lines = ("nvidia: no answer", "simulated: unreadable", "acme: no answer")
    assert [concerns_device(line, real) for line in lines] == [True, False, True]
    assert [concerns_device(line, simulated) for line in lines] == [False, True, False]
    assert [concerns_device(line, a_cpu()) for line in lines] == [False, False, True]
