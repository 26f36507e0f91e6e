"""Templates of claims, and when they stay in the cluster."""

import json

import pytest
from kubernetes.client import ApiException

from hetero_airflow.engines.kubernetes.claims.claim_client import KNOWN_S, KnownTemplates, make_claimed
from hetero_airflow.engines.kubernetes.claims.claim_template import (
    CLAIM_ANNOTATION,
    asks_for_share,
    claim_template,
    lease_template,
    template_for,
    without_sharing,
)
from hetero_airflow.errors import RequestError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.testing import FakeClock, a_device
from tests.engines.kubernetes.fake_api import connect


def template(device, **arguments):
    return claim_template(DeviceRequest.parse(device, **arguments).alternatives)


def test_one_alternative_is_asked_for_exactly(check_body):
    made = template("a100-80gb:2", driver=">=550")
    check_body(made, "V1ResourceClaimTemplate")
    assert made["spec"]["spec"]["devices"]["requests"] == [
        {
            "name": "devices",
            "exactly": {
                "deviceClassName": "gpu.nvidia.com",
                "selectors": [
                    {
                        "cel": {
                            "expression": 'has(device.attributes["gpu.nvidia.com"].productName) && '
                            'device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches('
                            '"(^|[^a-z0-9])a[ _-]?100([^a-z0-9]|$)") && '
                            '(device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches('
                            '"(^|[^a-z0-9])80[ _-]?gb[0-9]*([^a-z0-9]|$)") || '
                            '(has(device.capacity["gpu.nvidia.com"].memory) && '
                            'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("76000000000")) >= 0 && '
                            'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("90194313216")) <= 0)) && '
                            '!device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches('
                            '"[^a-z0-9]((d|design|display|laptop|mobile|super|ti)([^a-z0-9]|$)|[0-9]{1,3}[abcq]$)")'
                        }
                    },
                    {
                        "cel": {
                            "expression": 'has(device.attributes["gpu.nvidia.com"].driverVersion) && '
                            'device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("550.0.0")) >= 0'
                        }
                    },
                    {"cel": {"expression": "!device.allowMultipleAllocations"}},
                ],
                "allocationMode": "ExactCount",
                "count": 2,
            },
        }
    ]


def test_alternatives_keep_their_order(check_body):
    made = template(["h100:2", "mi300x", "mig-1g.10gb"])
    check_body(made, "V1ResourceClaimTemplate")
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    requested = [
        (alternative["name"], alternative["deviceClassName"], alternative["count"])
        for alternative in request["firstAvailable"]
    ]
    assert requested == [
        ("choice-0", "gpu.nvidia.com", 2),
        ("choice-1", "gpu.amd.com", 1),
        ("choice-2", "mig.nvidia.com", 1),
    ]
    assert "exactly" not in request


def test_a_pod_gives_its_template_a_name_and_labels(check_body):
    pod = {"metadata": {"name": "train-x1", "namespace": "ml", "labels": {"dag_id": "d"}}}
    made = template_for(template("h100:2"), pod)
    check_body(made, "V1ResourceClaimTemplate")
    labels = {"dag_id": "d", "app.kubernetes.io/managed-by": "hetero-airflow"}
    assert made["metadata"] == {"name": "train-x1-devices", "namespace": "ml", "labels": labels}
    assert made["spec"]["metadata"]["labels"] == labels


def test_a_share_is_of_a_device_that_several_claims_may_have():
    request = template("nvidia:0.5", quota={"memory": "20GiB"})["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert request["selectors"] == [{"cel": {"expression": "device.allowMultipleAllocations"}}]
    assert request["capacity"] == {"requests": {"memory": "20Gi"}}
    assert asks_for_share(template(["a100", "nvidia:0.5"]))
    assert not asks_for_share(template(["a100", "nvidia:2"]))


def test_without_shared_devices_a_whole_one_needs_no_condition():
    plain = without_sharing(template(["nvidia:2", "mi300x"]))
    assert "allowMultipleAllocations" not in str(plain)
    (first, second) = plain["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]
    assert "selectors" not in first
    assert len(second["selectors"]) == 2


@pytest.mark.parametrize(
    ("device", "arguments", "text"),
    [
        ("910b", {}, "no known DRA driver"),
        ({"vendor": "intel", "kind": "fpga"}, {}, "no known DRA driver"),
        ("gpu:33", {}, "32 devices"),
        ("gpu:2", {"topology": "numa"}, "no attribute that all devices have"),
        ("v5e", {"quota": {"memory": "1GiB"}}, "no memory of TPUs"),
        ({"vendor": "google", "kind": "tpu", "model": "v99"}, {}, "gke-tpu-accelerator"),
        ({"vendor": "intel", "kind": "gpu"}, {"driver": ">=1"}, "no version of intel's driver"),
        ({"vendor": "intel", "kind": "gpu", "partition": "half"}, {}, "no partitions of intel"),
        ({"model": "x100"}, {}, "no vendor"),
        ([f"nvidia:{count}" for count in range(1, 10)], {}, "limit of 8"),
    ],
)
def test_a_condition_that_a_claim_can_not_express_is_refused(device, arguments, text):
    with pytest.raises(RequestError, match=text):
        template(device, **arguments)


@pytest.fixture
def client(api):
    api.have_claims("gpu.nvidia.com")
    return connect(api).api_client


def a_body(*device_ids):
    """A pod of a lease of these devices, as it is sent."""
    devices = [
        a_device(id_, details={"device_class": "gpu.nvidia.com", "pin": "uuid", "pin_value": id_}) for id_ in device_ids
    ]
    annotations = {CLAIM_ANNOTATION: json.dumps(lease_template(devices, "n", "u")), "a": "b"}
    return {"metadata": {"name": "p", "namespace": "default", "annotations": annotations}}


def test_a_template_of_a_lease_is_made_again_only_when_the_cluster_may_lack_it(api, client):
    clock, pods = FakeClock(), []
    known = KnownTemplates(lambda: clock.now().timestamp())

    def calls(*device_ids):
        """How many calls the next pod takes before it is made."""
        before = len(api.requests)
        make_claimed(client, a_body(*device_ids), pods.append, known)
        return len(api.requests) - before

    assert [calls("U"), calls("V"), calls("U"), calls("V"), calls("U", "V")] == [1, 1, 0, 0, 1]
    clock.advance(seconds=KNOWN_S)
    assert [calls("U"), calls("U")] == [1, 0], "the cluster has it still"
    api.objects["resourceclaimtemplates"].clear()
    known.forget()
    assert calls("U") == 1
    (template,) = api.objects["resourceclaimtemplates"].values()
    assert template["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]
    assert [pod["metadata"]["annotations"] for pod in pods] == [{"a": "b"}] * 8


def test_a_pod_is_not_made_without_its_template(api, client):
    api.forbidden.add("/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates")
    with pytest.raises(ApiException, match="403"):
        make_claimed(client, a_body("U"), pytest.fail, KnownTemplates())


def test_a_node_that_comes_again_has_other_templates():
    device = a_device(details={"device_class": "gpu.nvidia.com", "pin": "uuid", "pin_value": "U"})
    names = {lease_template([device], "n", uid)["metadata"]["name"] for uid in "uuv"}
    assert len(names) == 2
