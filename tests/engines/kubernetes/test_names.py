"""Names that Kubernetes accepts, and those that the installation gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.engines.kubernetes.names import (
    byte_quantity,
    check_label,
    is_extended_resource,
    is_label_value,
    is_qualified_name,
    is_subdomain,
)
from hetero_airflow.engines.kubernetes.options import ClusterOptions, cluster_options
from hetero_airflow.errors import RequestError, SettingsError

UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@given(st.integers(1, 2**50))
def test_a_quantity_of_bytes_is_exact(size):
    text = byte_quantity(size)
    number, unit = (text[:-2], text[-2:]) if text[-1] == "i" else (text, "")
    assert int(number) * UNITS[unit] == size


@pytest.mark.parametrize("text", ["a\n", "\nа", "ä", " a", "a b", "a/b", "a" * 64, "-", ".", "_a", "a_", "{}", "a\x00"])
def test_a_text_that_is_no_label_value_is_refused(text):
    assert not is_label_value(text)
    with pytest.raises(RequestError):
        check_label("zone", text)


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a//b", "A.b/c", "a" * 64, "a." * 127 + "/b", "a/b\n", "a_b/c"])
def test_a_text_that_is_no_name_is_refused(text):
    assert not is_qualified_name(text)
    assert not is_extended_resource(text)
    with pytest.raises(RequestError, match="no valid name of a label"):
        check_label(text, "a")


def test_limits_hold_to_the_character():
    assert (is_label_value("a" * 63), is_qualified_name(f"{'a' * 63}.example/{'b' * 63}")) == (True, True)
    assert (is_subdomain("a" * 63), is_subdomain("a" * 64)) == (True, False)


def test_a_device_has_a_domain_that_is_not_of_kubernetes_itself():
    names = [
        "nvidia.com/gpu",
        "huawei.com/Ascend910",
        "cpu",
        "kubernetes.io/x",
        "a.kubernetes.io/x",
        "notkubernetes.io/x",
    ]
    assert [is_extended_resource(name) for name in names] == [True, True, False, False, False, True]


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
