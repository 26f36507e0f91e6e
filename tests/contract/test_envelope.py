import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.contract.envelope import (
    ENVELOPE_KEY,
    add_lease,
    is_template,
    pack_request,
    read_lease,
    unpack_gang,
    unpack_request,
)
from hetero_airflow.errors import RequestError
from hetero_airflow.model.gang import GangSize
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.testing import a_task_lease


def test_a_request_comes_back_as_it_was():
    arguments = {"device": ["a100:2", "cpu:8"], "quota": {"host_memory": "1GiB"}, "priority": "high"}
    packed = pack_request([arguments])
    json.dumps(packed)
    assert unpack_request({ENVELOPE_KEY: packed}, -1) == DeviceRequest.parse(
        ["a100:2", "cpu:8"], quota={"host_memory": "1GiB"}, priority="high"
    )


def test_a_task_without_a_device_request_has_none():
    assert unpack_request({"KubernetesExecutor": {"image": "x"}}, -1) is None
    assert unpack_request(None, -1) is None


def test_each_instance_of_a_mapped_task_takes_its_own_entry():
    packed = {ENVELOPE_KEY: pack_request([{"device": "gpu:1"}, {"device": "gpu:2"}], stride=3)}
    counts = [unpack_request(packed, index).alternatives[0].count for index in range(7)]
    assert counts == [1, 1, 1, 2, 2, 2, 1]


def test_templates_are_kept_for_later():
    packed = pack_request([{"device": "{{ params.device }}", "labels": {"zone": "a"}, "quota": None}])
    assert unpack_request({ENVELOPE_KEY: packed}, -1) == {"device": "{{ params.device }}", "labels": {"zone": "a"}}


@pytest.mark.parametrize(
    ("arguments", "field", "problem"),
    [
        ({"device": "{{ params.x"}, "device", "unexpected end of template"),
        ({"device": ["gpu", "{{ params.x }"]}, "device", "unexpected '}'"),
        ({"device": "gpu", "labels": {"zone": "{{ zone | no_filter }}"}}, "labels", "no filter named 'no_filter'"),
        ({"device": "gpu", "topology": "{% if x %}numa"}, "topology", "Unexpected end of template"),
    ],
)
def test_a_template_with_a_mistake_is_refused_when_the_file_is_parsed(arguments, field, problem):
    with pytest.raises(RequestError, match=problem) as caught:
        pack_request([arguments])
    assert caught.value.field == field
    assert ".." not in str(caught.value)


NESTED = ["{{ " + opening * depth + "1" + closing * depth + " }}" for depth in (20, 40, 80, 160, 320, 640, 5000)
          for opening, closing in ("()", "[]", ("-", ""), ("1 + (", ")"))]  # fmt: skip


@pytest.mark.parametrize("template", ["{{ 'x' * 30000000000 }}", *NESTED], ids=lambda text: f"{len(text)}{text[3:6]}")
def test_no_template_is_computed_when_the_file_is_parsed(template):
    """Jinja's compiler computes constants. What is found only then is left to the process that renders it."""
    arguments = {"device": template}
    assert pack_request([arguments])["requests"] == [{"template": arguments}]


@pytest.mark.parametrize("value", ["{{ x }}", {"a": ["{% if x %}"]}, {"gpu", "{{ x }}"}])
def test_a_template_is_seen_at_any_depth(value):
    assert is_template(value)


def test_arguments_without_templates_are_checked_at_once():
    with pytest.raises(RequestError, match="an unknown device"):
        pack_request([{"device": "gpuu"}])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["requests", "stride", "request"]), inner)
    ),
)


@given(packed=JSON_VALUES, map_index=st.integers(-1, 5))
def test_an_envelope_that_no_operator_wrote_is_a_request_error(packed, map_index):
    with pytest.raises(RequestError, match="Leave that key to the device operators"):
        unpack_request({ENVELOPE_KEY: packed}, map_index)


def test_a_lease_travels_beside_the_trace():
    carrier = add_lease({"traceparent": "00-1"}, a_task_lease())
    assert carrier["traceparent"] == "00-1"
    assert read_lease(carrier) == a_task_lease()
    assert read_lease({"traceparent": "00-1"}) is None
    assert read_lease(None) is None


@pytest.mark.parametrize("gang", ["many", 0, -1, True, 2.5, [4], 10**9])
def test_a_gang_without_an_envelope_is_refused_before_a_lease(gang):
    packed = {**pack_request([{"device": "gpu"}]), "gang": gang}
    with pytest.raises(RequestError, match="gang"):
        unpack_request({ENVELOPE_KEY: packed}, 0)


def test_a_gang_survives_packing():
    assert unpack_gang({ENVELOPE_KEY: pack_request([{"device": "gpu"}], gang=GangSize(4, 2))}) == GangSize(4, 2)
    assert "gang" not in pack_request([{"device": "gpu"}])
