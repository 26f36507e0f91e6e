import json
from types import SimpleNamespace

import pytest
from kubernetes.client import ApiException

from hetero_airflow.engines.kubernetes.claims.claim_client import make_claimed
from hetero_airflow.engines.kubernetes.claims.claim_template import CLAIM_ANNOTATION, template_of
from tests.engines.kubernetes.fake_api import connect


@pytest.fixture
def client(api):
    api.have_claims("gpu.nvidia.com")
    return connect(api).api_client


def a_body(template_name):
    template = template_of([]) | {"metadata": {"name": template_name}}
    annotations = {CLAIM_ANNOTATION: json.dumps(template)}
    return {"metadata": {"name": "p", "namespace": "default", "annotations": annotations}, "spec": {}}


def test_a_template_that_is_not_the_leases_is_neither_made_nor_deleted(api, client):
    pod = SimpleNamespace(metadata=SimpleNamespace(name="p", uid="u"))
    assert make_claimed(client, a_body("of-another-team"), lambda _: pod, "l1") is pod
    assert api.requests == []


@pytest.mark.parametrize(("status", "is_left"), [(422, False), (500, True), (504, True)])
def test_a_template_stays_while_the_cluster_may_have_the_pod(api, client, status, is_left):
    def refuse(_):
        raise ApiException(status)

    settled = []
    with pytest.raises(ApiException):
        make_claimed(client, a_body("hetero-l1"), refuse, "l1", lambda: settled.append(True))
    assert (("default", "hetero-l1") in api.objects["resourceclaimtemplates"]) is is_left
    assert bool(settled) is not is_left
