import json
from types import SimpleNamespace

import pytest

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
