import pytest

from hetero_airflow.engines.kubernetes.options import ClusterOptions, cluster_options
from hetero_airflow.errors import SettingsError


def options(**given):
    return cluster_options(lambda section, name, default: given.get(name, default))


def test_nothing_is_named_by_default():
    assert options() == ClusterOptions()


def test_names_are_read():
    made = options(
        kubernetes_resources='{"Xilinx/U250": "xilinx.com/fpga-u250"}',
        kubernetes_priority_classes='{"urgent": "gpu-urgent"}',
    )
    assert made == ClusterOptions({"xilinx/u250": "xilinx.com/fpga-u250"}, {"urgent": "gpu-urgent"})


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("kubernetes_resources", "gpu=nvidia.com/gpu", "no JSON object"),
        ("kubernetes_resources", "[" * 100_000, "no JSON object"),
        ("kubernetes_resources", '{"gpu": "gpu"}', "does not accept as a name"),
        ("kubernetes_resources", '{"gpu": 1}', "does not accept as a name"),
        ("kubernetes_priority_classes", '{"urgent": "Urgent!"}', "does not accept as a name"),
        ("kubernetes_priority_classes", '{"asap": "gpu"}', "the priority 'asap'"),
    ],
)
def test_an_unreadable_option_is_an_error(option, text, problem):
    with pytest.raises(SettingsError, match=problem):
        options(**{option: text})
