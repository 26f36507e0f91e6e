import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.engines.kubernetes.selectors import node_conditions, products
from hetero_airflow.engines.kubernetes.selectors.affinity import MAX_TERMS, all_of, in_range, to_json
from hetero_airflow.errors import RequestError
from hetero_airflow.model.device import matches_model, model_tokens
from hetero_airflow.model.request import DeviceRequest

A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/cuda.driver-version.major": "550",
    "nvidia.com/cuda.driver-version.minor": "54",
    "nvidia.com/cuda.driver-version.revision": "05",
    "nvidia.com/cuda.runtime-version.major": "12",
    "nvidia.com/cuda.runtime-version.minor": "4",
}
"""Of a node of a GPU operator, as its documentation shows them."""
SHARED = A100 | {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
    "nvidia.com/gpu.replicas": "4",
}
SLICED = A100 | {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/gpu.slices.gi": "1"}


def alternative(device, **arguments):
    return DeviceRequest.parse(device, **arguments).alternatives[0]


def fits(node, device, /, **arguments):
    requested = alternative(device, **arguments)
    vendor = requested.vendor or "nvidia"
    terms = node_conditions.device_terms(requested, vendor, is_model_specific=False)
    return any(
        all(_holds(expression, node) for expression in term)
        for term in all_of(node_conditions.label_terms(requested.labels), terms)
    )


def _holds(expression, labels):
    value = labels.get(expression.key)
    answers = {
        "Exists": value is not None,
        "DoesNotExist": value is None,
        "In": value in expression.values,
        "NotIn": value not in expression.values,
    }
    if expression.operator in answers:
        return answers[expression.operator]
    if value is None:
        return False
    return (
        int(value) > int(expression.values[0])
        if expression.operator == "Gt"
        else int(value) < int(expression.values[0])
    )


@pytest.mark.parametrize(
    ("device", "arguments", "is_met"),
    [
        ("gpu", {}, True),
        ("a100", {}, True),
        ("a100-80gb", {}, True),
        ("a100-40gb", {}, False),
        ("h100", {}, False),
        ("a10", {}, False),
        ("nvidia", {"quota": {"memory": "80GiB"}}, True),
        ("nvidia", {"quota": {"memory": "80GB.."}}, True),
        ("nvidia", {"quota": {"memory": "81GiB.."}}, False),
        ("nvidia", {"quota": {"memory": "..40GiB"}}, False),
        ("nvidia", {"driver": ">=550.54.5"}, True),
        ("nvidia", {"driver": ">550.54.5"}, False),
        ("nvidia", {"driver": "==550.*,!=550.54.*"}, False),
        ("nvidia", {"runtime": {"cuda": ">=12.2,<13"}}, True),
        ("nvidia", {"runtime": {"cuda": ">=12.5"}}, False),
        ("nvidia", {"runtime": {"torch": ">=99"}}, True),  # of the image, not of the node
        ("nvidia", {"labels": {"zone": "b"}}, False),
        ("nvidia", {"labels": {"zone": "!b"}}, True),
        ("gpu:0.5", {}, False),
    ],
)
def test_only_a_node_that_meets_the_conditions_is_selected(device, arguments, is_met):
    assert fits(A100, device, **arguments) == is_met


def test_a_whole_gpu_is_never_a_replica_or_an_instance():
    assert [fits(labels, "nvidia") for labels in (A100, SHARED, SLICED, {})] == [True, False, False, True]


def test_a_share_is_a_replica_that_is_large_enough():
    assert [fits(SHARED, "gpu:0.25"), fits(SHARED, "gpu:0.2"), fits(SHARED, "gpu:0.5"), fits(A100, "gpu:0.25")] == [
        True,
        True,
        False,
        False,
    ]
    assert fits(SHARED, "a100-80gb", quota={"share": 0.25})
    assert fits(SHARED, "gpu:0.25", quota={"memory": "20GiB"})
    assert not fits(SHARED, "gpu:0.25", quota={"memory": "21GiB"})


def test_more_than_a_half_of_a_gpu_is_refused_with_the_reason():
    with pytest.raises(RequestError, match="time-slicing and MPS, which give at most half"):
        node_conditions.device_terms(alternative("gpu:0.6"), "nvidia", is_model_specific=False)


def test_a_size_that_the_product_does_not_name_is_looked_up_in_the_memory_label():
    h100 = {"nvidia.com/gpu.product": "NVIDIA-H100-PCIe", "nvidia.com/gpu.memory": "81559"}
    nvl = {"nvidia.com/gpu.product": "NVIDIA-H100-NVL", "nvidia.com/gpu.memory": "95830"}
    assert [fits(h100, "h100-80gb"), fits(nvl, "h100-80gb"), fits(nvl, "h100"), fits(nvl, "h100-94gb")] == [
        True,
        False,
        True,
        True,
    ]


@given(st.sampled_from(products.NVIDIA + products.AMD))
def test_each_known_product_is_of_the_model_that_is_called_like_it(name):
    word = name.lower().replace("_", "-")
    assert name in products.products_of(word, products.NVIDIA + products.AMD)
    assert matches_model(word, model_tokens(word))


def test_amd_nodes_are_known_by_product_size_and_exact_driver():
    node = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}
    node["amd.com/gpu.driver-version"] = "6.10.5"
    assert fits(node, "mi300x:8", driver="==6.10.5", quota={"memory": "150GiB..200GiB"})
    assert not fits(node, "mi250x")
    assert not fits(node, "amd", quota={"memory": "..100GiB"})
    with pytest.raises(RequestError, match="no node label of amd devices that shows it"):
        fits(node, "amd", driver=">=6.10")


def test_ascend_and_tpu_nodes_are_known_by_their_chip():
    assert fits({"node.kubernetes.io/npu.chip.name": "910B3"}, "910b:8")
    assert not fits({"node.kubernetes.io/npu.chip.name": "910ProB"}, "910b:8")
    slice_of_one_host = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    assert fits(slice_of_one_host, "v5e:8")
    assert not fits(slice_of_one_host, "v5e:4")
    assert fits(slice_of_one_host, "v5e:4", labels={"cloud.google.com/gke-tpu-topology": "2x4"})
    with pytest.raises(RequestError, match="hosts of 1, 4, 8 chips"):
        fits(slice_of_one_host, "v5e:3")


@pytest.mark.parametrize(
    ("device", "arguments", "text"),
    [
        ("nvidia/x1000", {}, "no known value of the node label nvidia.com/gpu.product"),
        ("ascend/999x", {}, "node.kubernetes.io/npu.chip.name"),
        ("910b", {"driver": ">=25"}, "no node label of ascend devices"),
        ("910b", {"quota": {"memory": "64GiB"}}, "no node label of ascend devices"),
        ("v5e:0.5", {}, "no node label of google devices"),
        ("mi300x:0.5", {}, "only NVIDIA's plugin shares devices"),
        ("intel/flex-999", {}, "gpu.intel.com/product"),
        ("nvidia:2", {"topology": "nvlink"}, "topology manager"),
        ("nvidia", {"labels": {"a b": "c"}}, "no valid name of a label"),
        ("nvidia", {"labels": {"zone": "a b"}}, "no valid value of a label"),
        ("nvidia", {"labels": {"zone": "!a,b c"}}, "no valid value of a label"),
        ("amd", {"quota": {"memory": "..1GiB"}}, "no AMD GPU of that size"),
    ],
)
def test_a_condition_without_a_label_is_refused_with_a_remedy(device, arguments, text):
    with pytest.raises(RequestError, match=text):
        fits({}, device, **arguments)


def test_a_cpu_is_of_a_vendor_at_most():
    known = node_conditions.cpu_terms(alternative({"vendor": "amd", "kind": "cpu", "count": 2}))
    assert to_json(known)[0]["matchExpressions"][0]["values"] == ["AMD"]
    assert to_json(node_conditions.cpu_terms(alternative("cpu:2"))) == []
    with pytest.raises(RequestError):
        node_conditions.cpu_terms(alternative({"kind": "cpu", "model": "epyc-9654"}))


def test_a_pile_of_specifiers_is_refused_and_soon():
    pile = ",".join(f"!={number}" for number in range(1, 40))
    with pytest.raises(RequestError, match=f"a limit of {MAX_TERMS}"):
        node_conditions.device_terms(alternative("nvidia", driver=pile), "nvidia", is_model_specific=False)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 6))
def test_both_ends_of_a_range_belong_to_it(low, high, value):
    held = all(_holds(expression, {"m": str(value)}) for expression in in_range("m", low, high))
    assert held == (low <= value <= high)


def test_terms_are_joined_as_alternatives_are():
    first, second = in_range("a", 1, None), in_range("b", 1, None)
    joined = all_of((first, second), (second,))
    assert joined == (first + second, second)
    assert len(set(itertools.chain(*joined))) == 2
