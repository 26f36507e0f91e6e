"""Expressions are evaluated by a CEL interpreter, with the functions of Kubernetes' libraries beside it."""

import celpy
import pytest
from celpy import celtypes
from hypothesis import assume, given
from hypothesis import strategies as st

from hetero_airflow.engines.kubernetes.claims import cel
from hetero_airflow.engines.kubernetes.claims.claim_template import claim_template, device_request
from hetero_airflow.engines.kubernetes.selectors import products
from hetero_airflow.errors import RequestError
from hetero_airflow.matching.feasibility import version_obstacle
from hetero_airflow.model.device import Device, device_tokens, matches_model
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.units import ByteRange

DOMAIN = "gpu.nvidia.com"
ENVIRONMENT = celpy.Environment()
"""It changes Python's recursion limit, which Hypothesis does not accept in the middle of a test."""


class Version(str):
    """What a version attribute is: comparable as semver, and nothing else."""

    __slots__ = ()

    @property
    def key(self):
        return tuple(map(int, self.split(".")))


FUNCTIONS = {
    "quantity": lambda text: celtypes.IntType(int(text)),
    "semver": lambda text: Version(text),
    "lowerAscii": lambda text: celtypes.StringType(str(text).lower()),
    "compareTo": lambda left, right: celtypes.IntType(
        (getattr(left, "key", left) > getattr(right, "key", right))
        - (getattr(left, "key", left) < getattr(right, "key", right))
    ),
}


def evaluate(expression, attributes=None, capacity=None, domain=DOMAIN, *, is_shared=False):
    program = ENVIRONMENT.program(ENVIRONMENT.compile(expression), functions=FUNCTIONS)
    device = celtypes.MapType()
    for name, values in (("attributes", attributes or {}), ("capacity", capacity or {})):
        inner = celtypes.MapType()
        for key, value in values.items():
            read = value if isinstance(value, Version) else celpy.json_to_cel(value)
            inner[celtypes.StringType(key)] = read
        device[celtypes.StringType(name)] = celtypes.MapType({celtypes.StringType(domain): inner})
    device[celtypes.StringType("allowMultipleAllocations")] = celtypes.BoolType(is_shared)
    return bool(program.evaluate({"device": device}))


def meets(request, attributes=None, capacity=None, domain=DOMAIN):
    selectors = device_request(request).get("selectors", [])
    return all(evaluate(selector["cel"]["expression"], attributes, capacity, domain) for selector in selectors)


def an_alternative(device, **arguments):
    return DeviceRequest.parse(device, **arguments).alternatives[0]


H100 = {
    "productName": "NVIDIA H100 PCIe",
    "driverVersion": Version("550.54.5"),
    "cudaDriverVersion": Version("12.4.0"),
}
H100_CAPACITY = {"memory": 85520809984}


@pytest.mark.parametrize(
    ("device", "arguments", "is_met"),
    [
        ("h100", {}, True),
        ("h100-80gb", {}, True),  # by its memory: the name has no size
        ("h100-pcie", {}, True),
        ("h100-94gb", {}, False),
        ("a100", {}, False),
        ("nvidia/h10", {}, False),
        ("nvidia/100", {}, False),
        ("nvidia", {"quota": {"memory": "79GiB..80GiB"}}, True),
        ("nvidia", {"quota": {"memory": "..79GiB"}}, False),
        ("nvidia", {"driver": ">=535.104.5,<560"}, True),
        ("nvidia", {"driver": "!=550.54.*"}, False),
        ("nvidia", {"driver": ">550.54.5"}, False),
        ("nvidia", {"runtime": {"cuda": "~=12.2", "torch": ">=99"}}, True),
        ("nvidia", {"runtime": {"cuda": ">=12.5"}}, False),
    ],
)
def test_only_a_device_that_meets_the_conditions_is_selected(device, arguments, is_met):
    assert meets(an_alternative(device, **arguments), H100, H100_CAPACITY) == is_met


def test_a_device_without_an_attribute_is_passed_over_and_ends_no_allocation():
    """A selector that fails, ends the allocation for all nodes."""
    demands = an_alternative("h100-80gb", driver=">=1", runtime={"cuda": ">=1"}, quota={"memory": "1GiB.."})
    *conditions, _ = device_request(demands)["selectors"]
    for selector in conditions:
        assert evaluate(selector["cel"]["expression"]) is False


def test_other_drivers_have_other_names_for_their_attributes():
    mi300x = {"type": "amdgpu", "productName": "AMD_Instinct_MI300X_OAM", "driverVersion": Version("6.10.5")}
    wanted = an_alternative("mi300x", driver=">=6.8")
    assert meets(wanted, mi300x, domain="gpu.amd.com")
    assert not meets(wanted, mi300x | {"type": "amdgpu-partition"}, domain="gpu.amd.com")
    assert meets(an_alternative("v5e"), {"accelerator": "tpu-v5-lite-podslice"}, domain="tpu.google.com")
    assert meets(
        an_alternative({"vendor": "intel", "kind": "gpu", "model": "a770"}), {"model": "A770"}, None, "gpu.intel.com"
    )


def test_a_memory_that_the_driver_could_not_read_suits_no_range():
    text = cel.memory_is("gpu.amd.com", ByteRange.parse("..64GiB"))
    assert not evaluate(text, capacity={"memory": 0}, domain="gpu.amd.com")
    assert evaluate(text, capacity={"memory": 2**34}, domain="gpu.amd.com")


def test_a_mig_instance_is_asked_for_by_its_profile():
    made = device_request(an_alternative("mig-1g.10gb+me"))
    assert made["deviceClassName"] == "mig.nvidia.com"
    selector, _ = made["selectors"]
    assert evaluate(selector["cel"]["expression"], {"profile": "1g.10gb+me"})
    assert not evaluate(selector["cel"]["expression"], {"profile": "1g.10gb"})


@given(st.text())
def test_a_quoted_text_is_one_text_and_that_text(text):
    assert evaluate(cel.equals(DOMAIN, "profile", text), {"profile": text})
    assert not evaluate(cel.equals(DOMAIN, "profile", text), {"profile": text + "."})


INJECTIONS = [
    '" || true || "',
    "\\",
    '\\" || true',
    '"""',
    "'; true",
    '" == "" || "',
    "\n|| true",
    "${x}",
    "\u202e",
    "a\x00b",
]


@pytest.mark.parametrize("text", INJECTIONS)
def test_a_text_can_not_leave_its_quotes(text):
    expression = cel.equals(DOMAIN, "profile", text)
    assert not evaluate(expression, {"profile": "1g.10gb"})
    assert expression.isascii()
    assert expression.isprintable()


@pytest.mark.parametrize("text", INJECTIONS)
def test_no_field_of_a_request_brings_such_a_text_into_an_expression(text):
    for fields in (
        {"model": text},
        {"partition": text},
        {"driver": text},
        {"memory": text},
        {"runtime": {"cuda": text}},
    ):
        try:
            alternative = DeviceRequest.parse({"vendor": "nvidia", "kind": "gpu", **fields}).alternatives[0]
        except RequestError:
            continue
        assert not meets(alternative, {"productName": "x", "profile": "x"})


WORDS = st.from_regex(r"\A[a-z0-9][a-z0-9._+-]{0,12}\Z")


@given(WORDS, st.sampled_from([name.replace("-", " ") for name in products.NVIDIA]))
def test_any_model_makes_an_expression_that_can_be_evaluated(model, product):
    assume(not products.is_unknown_variant(model, "nvidia"))
    alternative = Alternative(vendor="nvidia", kind="gpu", model=model)
    assert meets(alternative, {"productName": product}, {"memory": 2**34}) in (True, False)


@given(st.sampled_from(products.NVIDIA), st.data())
def test_a_product_is_of_the_models_that_matching_says(name, data):
    """For whole words of names, as people ask for them."""
    words = sorted({word for product in products.NVIDIA for word in product.lower().split("-")})
    model = "-".join(data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=2, unique=True)))
    device = Device(id="g", vendor="nvidia", kind="gpu", model=name.lower(), index=0, memory_bytes=2**50)
    wanted = Alternative(vendor="nvidia", kind="gpu", model=model)
    matches = matches_model(model, device_tokens(device))
    if products.is_unknown_variant(model, "nvidia"):
        assert not matches
    else:
        assert meets(wanted, {"productName": name.replace("-", " ")}, {"memory": 2**50}) == matches


VERSIONS = st.tuples(*[st.integers(0, 2)] * 3).map(lambda numbers: ".".join(map(str, numbers)))


@given(st.sampled_from([">=", ">", "<=", "<", "==", "!=", "~="]), VERSIONS, VERSIONS)
def test_versions_are_compared_as_elsewhere(operator, wanted, installed):
    expression = cel.version_is(DOMAIN, "driverVersion", "driver", operator + wanted)
    assert evaluate(expression, {"driverVersion": Version(installed)}) == (
        version_obstacle(installed, operator + wanted) is None
    )


def test_expressions_keep_the_limit_of_kubernetes():
    pile = ",".join(f"!={number}" for number in range(1, 60))[:250].rpartition(",")[0]
    wanted = an_alternative({"vendor": "nvidia", "model": "-".join(["a100"] * 25)}, driver=pile)
    (request,) = claim_template([wanted])["spec"]["spec"]["devices"]["requests"]
    selectors = request["exactly"]["selectors"]
    assert len(selectors) <= 32
    assert all(len(selector["cel"]["expression"]) <= 10 * 1024 for selector in selectors)
