import copy

import pytest

from hetero_airflow.engines.kubernetes.options import ClusterOptions
from hetero_airflow.engines.kubernetes.pods.pod_merge import complete_pod
from hetero_airflow.engines.kubernetes.pods.pod_parts import claim_parts, pod_parts
from hetero_airflow.model.request import DeviceRequest

OPTIONS = ClusterOptions(priority_classes={"medium": "gpu-medium"})
REQUEST = DeviceRequest.parse("nvidia:2", quota={"cpus": 4, "host_memory": "8GiB"}, labels={"zone": "a"})
PARTS = pod_parts(REQUEST, OPTIONS, "team-a")


def a_pod(container=None, metadata=None, **spec):
    containers = [{"name": "base", "image": "i", **(container or {})}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **(metadata or {})},
        "spec": {"containers": containers, **spec},
    }


def base(pod):
    return pod["spec"]["containers"][0]


def test_the_given_pod_is_left_as_it_is():
    pod = a_pod({"resources": {"limits": {"cpu": "1"}}}, tolerations=[{"key": "a", "operator": "Exists"}])
    before = copy.deepcopy(pod)
    complete_pod(pod, PARTS)
    assert pod == before


def test_to_complete_a_pod_twice_changes_no_amount(check_pod):
    once = complete_pod(a_pod(), PARTS)
    twice = complete_pod(once, PARTS)
    check_pod(twice)
    assert base(twice) == base(once)
    assert twice["spec"]["tolerations"] == once["spec"]["tolerations"]


@pytest.mark.parametrize(
    ("resources", "limits", "requests"),
    [
        (
            None,
            {"nvidia.com/gpu": "2", "cpu": "4", "memory": "8Gi"},
            {"nvidia.com/gpu": "2", "cpu": "4", "memory": "8Gi"},
        ),
        (
            {"requests": {"cpu": "500m"}},
            {"nvidia.com/gpu": "2", "memory": "8Gi"},
            {"cpu": "500m", "nvidia.com/gpu": "2", "memory": "8Gi"},
        ),
        (
            {"limits": {"memory": "1Gi", "nvidia.com/gpu.shared": "1"}},
            {"memory": "1Gi", "nvidia.com/gpu.shared": "1", "cpu": "4"},
            {"cpu": "4"},
        ),
        (
            {"limits": {"ephemeral-storage": "1Gi", "rdma/hca": "1"}},
            {"ephemeral-storage": "1Gi", "rdma/hca": "1", "nvidia.com/gpu": "2", "cpu": "4", "memory": "8Gi"},
            {"nvidia.com/gpu": "2", "cpu": "4", "memory": "8Gi"},
        ),
    ],
)
def test_amounts_that_the_author_gave_stay(resources, limits, requests):
    made = base(complete_pod(a_pod({"resources": resources} if resources else {}), PARTS))
    assert made["resources"] == {"limits": limits, "requests": requests}


def test_the_container_of_that_name_gets_the_devices_and_others_do_not(check_pod):
    pod = a_pod()
    pod["spec"]["containers"].insert(0, {"name": "sidecar", "image": "i"})
    made = complete_pod(pod, PARTS)
    check_pod(made)
    assert made["spec"]["containers"][0] == {"name": "sidecar", "image": "i"}
    assert "nvidia.com/gpu" in made["spec"]["containers"][1]["resources"]["limits"]
    assert "resources" in complete_pod(pod, PARTS, "no such name")["spec"]["containers"][0]


def test_node_conditions_of_the_pod_hold_beside_those_of_the_request(check_pod):
    author_terms = [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
    ]
    preferred = [{"weight": 1, "preference": author_terms[0]}]
    nodes = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": author_terms},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    pod = a_pod(affinity={"nodeAffinity": nodes, "podAntiAffinity": {}}, nodeSelector={"rack": "7"})
    made = complete_pod(pod, PARTS)
    check_pod(made)
    affinity = made["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[expression["key"] for expression in term["matchExpressions"]][:2] for term in terms] == [
        ["disk", "zone"],
        ["zone", "nvidia.com/gpu.slices.gi"],
    ]
    assert terms[1]["matchFields"] == author_terms[1]["matchFields"]
    assert affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    assert (affinity["podAntiAffinity"], made["spec"]["nodeSelector"]) == ({}, {"rack": "7"})


def test_the_security_context_is_completed_and_not_replaced(check_pod):
    security_context = {"runAsUser": 1000, "capabilities": {"add": ["IPC_LOCK"]}}
    made = complete_pod(
        a_pod({"securityContext": security_context}, securityContext={"seccompProfile": {"type": "Unconfined"}}), PARTS
    )
    check_pod(made)
    assert base(made)["securityContext"] == {**security_context, "allowPrivilegeEscalation": False}


@pytest.mark.parametrize("security_context", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}])
def test_a_privileged_container_of_the_author_is_no_contradiction(security_context, check_pod):
    made = complete_pod(a_pod({"securityContext": security_context}), PARTS)
    check_pod(made)
    assert "allowPrivilegeEscalation" not in base(made)["securityContext"]


def test_other_words_of_the_author_stay():
    metadata = {"labels": {"kueue.x-k8s.io/queue-name": "own"}, "annotations": {"hetero-airflow/request": "own"}}
    made = complete_pod(a_pod(metadata=metadata, priorityClassName="own"), PARTS)
    assert (made["metadata"]["labels"], made["metadata"]["annotations"]) == (
        metadata["labels"],
        metadata["annotations"],
    )
    assert made["spec"]["priorityClassName"] == "own"
    assert "priorityClassName" not in complete_pod(a_pod(priority=5), PARTS)["spec"]
    assert complete_pod(a_pod(), PARTS)["spec"]["priorityClassName"] == "gpu-medium"
    cpu = pod_parts(DeviceRequest.parse("cpu:1"), OPTIONS)
    environment = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert base(complete_pod(a_pod({"env": environment}), cpu))["env"] == environment


def test_a_claim_of_the_author_stays_beside_ours(check_pod):
    parts = claim_parts(REQUEST, OPTIONS)
    pod = a_pod(
        {"resources": {"claims": [{"name": "nic"}]}}, resourceClaims=[{"name": "nic", "resourceClaimName": "n"}]
    )
    made = complete_pod(pod, parts)
    check_pod(made)
    assert [claim["name"] for claim in made["spec"]["resourceClaims"]] == ["nic", "hetero-devices"]
    again = complete_pod(made, parts)
    assert again["spec"]["resourceClaims"] == made["spec"]["resourceClaims"]
    assert base(again)["resources"]["claims"] == [{"name": "nic"}, {"name": "hetero-devices"}]
