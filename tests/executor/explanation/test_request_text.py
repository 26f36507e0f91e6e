import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.executor.explanation.request_text import request_text
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.testing import requests


def read(text: str) -> DeviceRequest:
    """As Python reads it in a DAG file."""
    return DeviceRequest.parse(**eval(f"dict({text})", {"DeviceRequest": DeviceRequest}))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"device": "gpu"}, 'device="gpu"'),
        ({"device": "a100:2"}, 'device="nvidia/a100:2"'),
        ({"device": "gpu:0.5"}, 'device="gpu:0.5"'),
        ({"device": "mig-1g.10gb"}, 'device="mig-1g.10gb"'),
        ({"device": "nvidia"}, 'device="nvidia/gpu"'),
        ({"device": {"h100", "a100"}}, 'device={"nvidia/a100", "nvidia/h100"}'),
        (
            {"device": "gpu", "quota": {"cpus": 4, "host_memory": "8GiB", "memory": "24GiB"}},
            'device="gpu", quota={"memory": "24GiB..", "cpus": 4, "host_memory": "8GiB"}',
        ),
        (
            {"device": "gpu:2", "runtime": {"cuda": ">=12"}, "labels": {"zone": 'e"u'}, "topology": "nvlink@10m"},
            'device="gpu:2", runtime={"cuda": ">=12"}, labels={"zone": "e\\"u"}, topology="nvlink@10m"',
        ),
        (
            {"device": [{"device": "a100", "cpus": 4}, "cpu:8"], "priority": "low", "wait_timeout": "2h"},
            'device=[{"device": "nvidia/a100", "cpus": 4}, "cpu:8"], priority="low", wait_timeout=7200.0',
        ),
        ({"device": "gpu", "data": "s3://lake/a/"}, 'device="gpu", data="s3://lake/a/"'),
        (
            {"device": "gpu", "data": ["s3://lake/a", "gs://bucket/"]},
            'device="gpu", data=["s3://lake/a", "gs://bucket/"]',
        ),
        ({"device": {"kind": "gpu", "model": "odd"}}, 'device={"kind": "gpu", "model": "odd"}'),
    ],
)
def test_it_is_written_as_a_person_would(arguments, text):
    request = DeviceRequest.parse(**arguments)
    assert request_text(request) == text
    assert read(text) == request


def test_a_request_that_no_arguments_express_is_written_as_a_value():
    unordered = (Alternative(kind="gpu", cpus=4), Alternative(kind="npu", cpus=2))
    request = DeviceRequest(alternatives=unordered, is_ordered=False)
    assert request_text(request).startswith("device=DeviceRequest.model_validate(")
    assert read(request_text(request)) == request


@given(requests(), st.sampled_from([None, 1.5, 7200.0]))
def test_python_makes_an_equal_request_of_it(request, wait_timeout_s):
    fields = {name: getattr(request, name) for name in DeviceRequest.model_fields}
    request = DeviceRequest(**fields | {"wait_timeout_s": wait_timeout_s})
    assert read(request_text(request)) == request
