import pytest
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes import client

from hetero_airflow.contract.envelope import pack_request
from hetero_airflow.engines.kubernetes.claims.claim_template import lease_template
from hetero_airflow.engines.kubernetes.pods.pod_override import lease_override, lease_parts, requested_priority
from hetero_airflow.engines.kubernetes.slices.pools import pool_devices
from hetero_airflow.engines.kubernetes.slices.resource_slices import read_slice
from hetero_airflow.errors import RequestError
from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.worker import Worker
from hetero_airflow.testing import a_cpu, a_lease
from tests.engines.kubernetes.slices.played_slices import a_gpu, a_slice
from tests.kubernetes_bodies import check_body, check_pod

T4 = {"vendor": "nvidia", "kind": "gpu", "model": "tesla-t4", "memory_bytes": 15 * 2**30}
NODE = Worker(
    id="eu/gpu-1",
    host="gpu-1",
    engine="kubernetes",
    devices=(
        a_cpu(),
        *(Device(id=f"nvidia.com/gpu/{number}", index=number, **T4) for number in range(4)),
        Device(id="nvidia.com/mig-1g.10gb/0", index=0, partition="1g.10gb", **T4),
    ),
)
TEMPLATE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "template", "labels": {"tier": "airflow"}},
    "spec": {
        "containers": [
            {
                "name": "base",
                "image": "airflow",
                "env": [{"name": "A", "value": "1"}],
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
                "securityContext": {"runAsUser": 50000},
                "volumeMounts": [{"name": "logs", "mountPath": "/logs"}],
            }
        ],
        "tolerations": [{"key": "airflow", "operator": "Exists"}],
        "volumes": [{"name": "logs", "emptyDir": {}}],
        "restartPolicy": "Never",
    },
}


def parts_of(lease, worker, priority_class=None):
    return lease_parts(lease, worker, "u", priority_class)


def a_lease_of(*claims):
    return a_lease(worker_id=NODE.id).model_copy(update={"claims": claims})


def gpus(*numbers):
    return [Claim(f"nvidia.com/gpu/{number}", 1000, 15 * 2**30) for number in numbers]


def launched(parts, override_spec=None):
    """The pod that KubernetesExecutor makes of its template and our override."""
    template = PodGenerator.deserialize_model_dict(TEMPLATE)
    override = PodGenerator.deserialize_model_dict(override_spec) if override_spec else None
    base = PodGenerator.serialize_pod(PodGenerator.reconcile_pods(template, override))
    made = PodGenerator.deserialize_model_dict(lease_override(base, override_spec, parts, NODE.host))
    pod = PodGenerator.construct_pod(
        dag_id="d", task_id="t", pod_id="d-t", try_number=1, kube_image="image", date=None, args=["run"],
        pod_override_object=made, base_worker_pod=template, namespace="default", scheduler_job_id="1", run_id="r",
    )  # fmt: skip
    pod = client.ApiClient().sanitize_for_serialization(pod)
    check_pod(pod)
    return pod


def test_a_lease_becomes_a_pod_on_its_node():
    lease = a_lease_of(*gpus(1, 3), Claim("cpu", 4000, 8 * 2**30, (0, 1, 2, 3)))
    pod = launched(parts_of(lease, NODE, "gpu-high"))
    base = pod["spec"]["containers"][0]
    nodes = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert nodes == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}]
    }
    assert base["resources"] == {
        "requests": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"},
        "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"},
    }
    assert pod["metadata"]["labels"]["hetero-airflow/lease"] == lease.id
    assert pod["metadata"]["labels"]["tier"] == "airflow"
    assert pod["metadata"]["annotations"]["hetero-airflow/devices"] == "nvidia.com/gpu/1,nvidia.com/gpu/3"
    assert pod["spec"]["priorityClassName"] == "gpu-high"
    assert [toleration["key"] for toleration in pod["spec"]["tolerations"]] == ["airflow", "nvidia.com/gpu"]
    assert base["securityContext"]["runAsUser"] == 50000
    assert base["securityContext"]["allowPrivilegeEscalation"] is False
    assert [variable["name"] for variable in base["env"]] == ["A", "AIRFLOW_IS_K8S_EXECUTOR_POD"]
    assert (base["image"], base["args"], len(pod["spec"]["volumes"])) == ("image", ["run"], 1)


def test_fields_that_the_lease_does_not_set_come_from_the_template():
    base = launched(parts_of(a_lease_of(*gpus(0)), NODE))["spec"]["containers"][0]
    assert base["resources"]["requests"] == {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}


def test_a_lease_of_slice_devices_claims_exactly_these():
    gpus = a_slice("gpu-1", [a_gpu(0), a_gpu(1), a_gpu(2)])
    devices = pool_devices([read_slice(gpus)])["gpu-1"]
    worker = NODE.model_copy(update={"devices": (a_cpu(), *devices)})
    lease = a_lease_of(*(Claim(device.id, 1000, 2**30) for device in devices[1:]))
    parts = parts_of(lease, worker)
    check_body(parts.claim, "V1ResourceClaimTemplate")
    (request,) = parts.claim["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 2
    (selector,) = request["exactly"]["selectors"]
    assert '.uuid in ["GPU-00000001", "GPU-00000002"]' in selector["cel"]["expression"]
    pod = launched(parts)
    claim = {"name": "hetero-devices", "resourceClaimTemplateName": parts.claim["metadata"]["name"]}
    assert pod["spec"]["resourceClaims"] == [claim]
    base = pod["spec"]["containers"][0]
    assert base["resources"]["claims"] == [{"name": "hetero-devices"}]
    assert "nvidia.com/gpu" not in str(base["resources"])
    assert pod["metadata"]["annotations"]["hetero-airflow/devices"].split(",") == [device.id for device in devices[1:]]


def test_more_devices_than_a_claim_can_have_are_refused():
    devices = pool_devices([read_slice(a_slice("gpu-1", [a_gpu(number) for number in range(33)]))])["gpu-1"]
    with pytest.raises(RequestError, match="32 devices at most in a claim"):
        lease_template([device for device in devices if device.leasable], "gpu-1", "u")


def test_the_claims_of_the_author_stay_beside_that_of_the_lease():
    devices = pool_devices([read_slice(a_slice("gpu-1", [a_gpu(0)]))])["gpu-1"]
    worker = NODE.model_copy(update={"devices": (a_cpu(), *devices)})
    nic = {"name": "devices", "resourceClaimName": "nic-1"}
    authored = {"spec": {"containers": [{"name": "base", "resources": {"claims": [{"name": "devices"}]}}],
                         "resourceClaims": [nic]}}  # fmt: skip
    pod = launched(parts_of(a_lease_of(Claim(devices[0].id, 1000)), worker), authored)
    assert [claim["name"] for claim in pod["spec"]["resourceClaims"]] == ["devices", "hetero-devices"]
    claims = pod["spec"]["containers"][0]["resources"]["claims"]
    assert claims == [{"name": "devices"}, {"name": "hetero-devices"}]


def test_the_author_can_not_give_the_template_of_a_claim():
    authored = {"metadata": {"annotations": {"hetero-airflow/claim-template": "{}", "mine": "1"}},
                "spec": {"containers": [{"name": "base"}]}}  # fmt: skip
    annotations = launched(parts_of(a_lease_of(*gpus(0)), NODE), authored)["metadata"]["annotations"]
    assert ("hetero-airflow/claim-template" in annotations, annotations["mine"]) == (False, "1")


def test_a_mig_instance_is_a_resource_of_its_own():
    base = launched(parts_of(a_lease_of(Claim("nvidia.com/mig-1g.10gb/0", 1000)), NODE))["spec"]["containers"][0]
    assert base["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"


def test_a_task_of_cores_sees_no_gpu():
    parts = parts_of(a_lease_of(Claim("cpu", 2000, 2**30, (0, 1))), NODE)
    assert dict(parts.amounts) == {"cpu": "2", "memory": "1Gi"}
    base = launched(parts)["spec"]["containers"][0]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in base["env"]


def test_the_authors_override_counts_first_and_adds_to_ours():
    override_spec = {
        "metadata": {"labels": {"hetero-airflow/lease": "forged", "team": "a"}, "annotations": {"x": "y"}},
        "spec": {
            "containers": [
                {
                    "name": "base",
                    "image": "own",
                    "resources": {"limits": {"memory": "9Gi"}},
                    "env": [{"name": "B", "value": "2"}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "priorityClassName": "own",
            "volumes": [{"name": "data", "emptyDir": {}}],
            "tolerations": [{"key": "own", "operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"
                        ]
                    }
                }
            },
        },
    }
    lease = a_lease_of(*gpus(0))
    pod = launched(parts_of(lease, NODE, "gpu-high"), override_spec)
    base = pod["spec"]["containers"][0]
    assert base["image"] == "own"
    assert base["resources"] == {
        "limits": {"memory": "9Gi", "nvidia.com/gpu": "1"},
        "requests": {"nvidia.com/gpu": "1"},
    }
    assert pod["metadata"]["labels"]["hetero-airflow/lease"] == lease.id
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["spec"]["priorityClassName"] == "own"
    assert sorted(volume["name"] for volume in pod["spec"]["volumes"]) == ["data", "logs"]
    assert sorted(mount["name"] for mount in base["volumeMounts"]) == ["data", "logs"]
    assert sorted(variable["name"] for variable in base["env"]) == ["A", "AIRFLOW_IS_K8S_EXECUTOR_POD", "B"]
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["matchExpressions"][0]["values"] for term in terms["nodeSelectorTerms"]] == [["a"], ["b"]]
    assert all(term["matchFields"][0]["values"] == ["gpu-1"] for term in terms["nodeSelectorTerms"])


def test_an_override_without_containers_is_one_too():
    pod = launched(parts_of(a_lease_of(*gpus(0)), NODE), {"spec": {"containers": []}, "metadata": {}})
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(
    ("arguments", "priority"),
    [({}, "medium"), ({"priority": "urgent"}, "urgent"), ({"priority": "{{ params.p }}"}, "medium")],
)
def test_the_priority_is_that_of_the_request(arguments, priority):
    packed = pack_request([{"device": "gpu"}, {"device": "gpu", **arguments}])
    assert requested_priority({"hetero": packed}, 1) == priority
    assert requested_priority({"hetero": packed}, None) == "medium"
