import contextlib

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hetero_airflow.engines.kubernetes.options import ClusterOptions
from hetero_airflow.engines.kubernetes.pods.pod_merge import complete_pod
from hetero_airflow.engines.kubernetes.pods.pod_parts import claim_parts, pod_parts
from hetero_airflow.engines.kubernetes.selectors import products
from hetero_airflow.engines.kubernetes.selectors.affinity import Requirement, is_in
from hetero_airflow.errors import RequestError
from hetero_airflow.model.request import DeviceRequest

NOTHING = ClusterOptions()
BARE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train"},
    "spec": {"containers": [{"name": "base", "image": "pytorch/pytorch"}], "restartPolicy": "Never"},
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def parts_of(device, options=NOTHING, queue=None, **arguments):
    return pod_parts(DeviceRequest.parse(device, **arguments), options, queue)


def pod_for(device, **arguments):
    return complete_pod(BARE, parts_of(device, **arguments))


def test_a_request_becomes_a_pod(check_pod):
    options = ClusterOptions(priority_classes={"high": "gpu-high"})
    pod = pod_for(
        "nvidia/a100-40gb:2",
        options=options,
        queue="team-a",
        quota={"cpus": 8, "host_memory": "64GiB"},
        driver=">=550.54",
        runtime={"torch": ">=2.8"},
        labels={"topology.kubernetes.io/zone": "eu-1a"},
        priority="high",
    )
    check_pod(pod)
    common = [
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-1a"]},
        {"key": "nvidia.com/gpu.slices.gi", "operator": "DoesNotExist"},
        {"key": "nvidia.com/gpu.sharing-strategy", "operator": "NotIn", "values": ["mps", "time-slicing"]},
        {"key": "cloud.google.com/gke-gpu-sharing-strategy", "operator": "DoesNotExist"},
        {"key": "cloud.google.com/gke-max-shared-clients-per-gpu", "operator": "DoesNotExist"},
        {"key": "cloud.google.com/gke-gpu-partition-size", "operator": "DoesNotExist"},
    ]
    exact = {"key": "nvidia.com/gpu.product", "operator": "In"}
    exact["values"] = ["NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-SXM4-40GB"]
    sized = [
        {**exact, "values": ["NVIDIA-A100-80GB-PCIe", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM-64GB"]},
        {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["36239"]},
        {"key": "nvidia.com/gpu.memory", "operator": "Lt", "values": ["43009"]},
    ]
    major = "nvidia.com/cuda.driver-version.major"
    same_major = [
        {"key": major, "operator": "Gt", "values": ["549"]},
        {"key": major, "operator": "Lt", "values": ["551"]},
        {"key": "nvidia.com/cuda.driver-version.minor", "operator": "Gt", "values": ["53"]},
    ]
    later = [{"key": major, "operator": "Gt", "values": ["550"]}]
    terms = [[*common, *model, *driver] for model in ([exact], sized) for driver in (same_major, later)]
    amounts = {"nvidia.com/gpu": "2", "cpu": "8", "memory": "64Gi"}
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train",
            "labels": {"kueue.x-k8s.io/queue-name": "team-a"},
            "annotations": {
                "hetero-airflow/request": "2 × nvidia/a100-40gb (cpus=8, host_memory=64GiB, torch>=2.8, "
                "driver>=550.54, topology.kubernetes.io/zone=eu-1a)",
                "hetero-airflow/unchecked": "torch>=2.8",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "priorityClassName": "gpu-high",
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": term} for term in terms]
                    }
                }
            },
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": "base",
                    "image": "pytorch/pytorch",
                    "resources": {"limits": amounts, "requests": amounts},
                    "securityContext": RESTRICTED,
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("mig-1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("mig-1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("mi300x", "amd.com/gpu"),
        ({"vendor": "intel", "kind": "gpu"}, "gpu.intel.com/i915"),
        ("npu", "huawei.com/Ascend910"),
        ("910b", "huawei.com/Ascend910"),
        ("310p", "huawei.com/Ascend310P"),
        ("tpu:4", "google.com/tpu"),
        ("gpu:0.5", "nvidia.com/gpu"),
    ],
)
def test_each_vendor_has_its_resource(device, name, check_pod):
    pod = pod_for(device)
    check_pod(pod)
    container = pod["spec"]["containers"][0]
    count = "4" if device == "tpu:4" else "1"
    assert container["resources"] == {"limits": {name: count}, "requests": {name: count}}
    assert name in [toleration["key"] for toleration in pod["spec"]["tolerations"]]


def test_a_mig_pod_also_stands_the_taint_of_gpu_nodes():
    keys = [toleration["key"] for toleration in pod_for("mig-1g.10gb")["spec"]["tolerations"]]
    assert keys == ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]


def test_a_cpu_sees_no_gpu_even_where_the_image_asks_for_all(check_pod):
    pod = pod_for("cpu:4", quota={"host_memory": "8GiB"})
    check_pod(pod)
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "8Gi"}
    assert container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert not pod["spec"].keys() & {"affinity", "tolerations"}


def test_the_first_alternative_is_taken():
    parts = parts_of(["h100:2", "cpu:4"])
    assert dict(parts.amounts) == {"nvidia.com/gpu": "2"}
    assert parts.annotations["hetero-airflow/left-out"] == "4 × cpu"
    assert dict(parts_of(["cpu:4", "h100:2"]).amounts) == {"cpu": "4"}


@pytest.mark.parametrize(
    ("resources", "device", "name"),
    [
        ({"gpu": "amd.com/gpu"}, "gpu", "amd.com/gpu"),
        ({"fpga": "xilinx.com/fpga-u250"}, "fpga", "xilinx.com/fpga-u250"),
        ({"xilinx/u250": "xilinx.com/fpga-u250"}, "u250", "xilinx.com/fpga-u250"),
        ({"ascend/910b": "huawei.com/Ascend910B3"}, "910b", "huawei.com/Ascend910B3"),
        ({"nvidia": "nvidia.com/gpu.shared", "nvidia/gpu": "nvidia.com/vgpu"}, "nvidia", "nvidia.com/vgpu"),
        ({"mig-1g.10gb": "nvidia.com/small"}, "mig-1g.10gb", "nvidia.com/small"),
        ({"nvidia": "nvidia.com/own"}, "mig-1g.10gb", "nvidia.com/mig-1g.10gb"),
    ],
)
def test_the_owner_of_a_cluster_names_its_resources(resources, device, name):
    assert list(parts_of(device, ClusterOptions(resources=resources)).amounts) == [name]


@pytest.mark.parametrize(
    "device", ["fpga", "u250", "stratix-10", {"model": "x1000"}, {"vendor": "acme", "kind": "npu"}]
)
def test_a_device_without_a_known_resource_is_refused_with_the_option_that_names_it(device):
    with pytest.raises(RequestError, match=r"kubernetes_resources|Name the vendor, as in"):
        parts_of(device)


@pytest.mark.parametrize("queue", ["", "a b", "a" * 64, "-a"])
def test_a_queue_that_can_not_be_is_refused(queue):
    with pytest.raises(RequestError, match="LocalQueue"):
        parts_of("gpu", queue=queue)


class TestClaims:
    def parts(self, device, **arguments):
        return claim_parts(DeviceRequest.parse(device, **arguments), NOTHING, "team-a")

    def test_a_claim_takes_the_place_of_resources_and_device_labels(self, check_pod, check_body):
        parts = self.parts(["h100:2", "mi300x"], driver=">=6", labels={"zone": "a"}, quota={"cpus": 4})
        check_body(parts.claim, "V1ResourceClaimTemplate")
        pod = complete_pod(BARE, parts)
        check_pod(pod)
        assert pod["spec"]["resourceClaims"] == [
            {"name": "hetero-devices", "resourceClaimTemplateName": "train-devices"}
        ]
        assert pod["spec"]["containers"][0]["resources"] == {
            "limits": {"cpu": "4"},
            "requests": {"cpu": "4"},
            "claims": [{"name": "hetero-devices"}],
        }
        nodes = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert nodes["nodeSelectorTerms"] == [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
        ]
        assert [toleration["key"] for toleration in pod["spec"]["tolerations"]] == ["nvidia.com/gpu", "amd.com/gpu"]

    def test_what_any_alternative_needs_of_the_host_is_there(self):
        small = {"device": "h100", "cpus": 2, "host_memory": "8GiB"}
        large = {"device": "a100:2", "cpus": 8, "host_memory": "4GiB"}
        assert dict(self.parts([small, large]).amounts) == {"cpu": "8", "memory": "8Gi"}

    def test_alternatives_that_no_claim_can_be_of_are_left_out_and_so_are_those_after_them(self):
        for impossible in ("cpu:4", "910b"):
            parts = self.parts(["h100", impossible, "a100"])
            assert "exactly" in parts.claim["spec"]["spec"]["devices"]["requests"][0]
            assert parts.annotations["hetero-airflow/left-out"].endswith(" or 1 × nvidia/a100")
        assert self.parts(["cpu:4", "h100"]).claim is None
        with pytest.raises(RequestError, match="no known DRA driver"):
            self.parts(["910b", "h100"])

    def test_labels_of_one_pod_can_not_differ(self):
        with pytest.raises(RequestError, match="one pod for all alternatives"):
            self.parts([{"device": "h100", "labels": {"zone": "a"}}, "a100"])


LABELS = st.dictionaries(
    st.one_of(st.text(min_size=1, max_size=20), st.from_regex(r"\A[a-z]{1,8}(/[a-z]{1,8})?\Z")),
    st.one_of(st.text(max_size=70), st.from_regex(r"\A!?[a-zA-Z0-9._-]{1,20}\Z")),
    max_size=3,
)
DEVICES = st.one_of(
    st.sampled_from(
        ["gpu:2", "nvidia", "a100", "h100-80gb:8", "mig-1g.10gb", "mi300x", "910b:4", "v5e:4", "gpu:0.25", "cpu:3"]
    ),
    st.sampled_from(products.NVIDIA).map(lambda name: f"nvidia/{name.lower()}"),
    st.from_regex(r"\A(nvidia|amd|google|ascend|intel|xilinx)/[a-z0-9._+-]{1,70}:?[1-9]?\Z"),
    st.from_regex(r"\Amig-[a-z0-9._+-]{1,70}\Z"),
)
SPECIFIERS = st.one_of(st.none(), st.sampled_from([">=535", "==550.54.15", "~=12.4", "!=1.*,<9"]), st.text(max_size=10))
QUOTAS = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.sampled_from(["1", "40GiB", "..80GB", "24GiB..80GiB"]),
        "cpus": st.integers(1, 4096),
        "host_memory": st.integers(1, 2**50),
    },
)


@settings(max_examples=150, deadline=None)
@given(DEVICES, QUOTAS, SPECIFIERS, SPECIFIERS, LABELS, st.booleans())
def test_whatever_is_asked_for_makes_a_pod_that_is_accepted_or_a_clear_refusal(
    check_pod, check_body, device, quota, driver, cuda, labels, with_claim
):
    parts = None
    with contextlib.suppress(RequestError):  # which always has what was found and what to do
        request = DeviceRequest.parse(
            device, quota=quota, driver=driver, runtime={"cuda": cuda} if cuda else None, labels=labels
        )
        parts = (claim_parts if with_claim else pod_parts)(request, NOTHING)
    event("refused" if parts is None else "made")
    if parts is None:
        return
    check_pod(complete_pod(BARE, parts))
    if parts.claim is not None:
        check_body(parts.claim, "V1ResourceClaimTemplate")


def test_a_request_without_spot_keeps_away_from_spot_nodes():
    request = DeviceRequest.parse(["nvidia", {"device": "nvidia/a100"}], spot=False, labels={"zone": "a"})
    for parts in (pod_parts(request, ClusterOptions()), claim_parts(request, ClusterOptions())):
        spot = [[requirement for requirement in term if requirement.key == "hetero/spot"] for term in parts.terms]
        assert spot == [[Requirement("hetero/spot", "DoesNotExist")], [is_in("hetero/spot", ["false"])]]
        assert all(is_in("zone", ["a"]) in term for term in parts.terms)
    mixed = DeviceRequest.parse(["nvidia/a100", {"device": "nvidia/h100", "spot": False}])
    with pytest.raises(RequestError, match="Give spot once"):
        claim_parts(mixed, ClusterOptions())


def test_an_architecture_is_the_label_of_kubernetes():
    request = DeviceRequest.parse({"device": "nvidia", "architecture": "aarch64"})
    for parts in (pod_parts(request, ClusterOptions()), claim_parts(request, ClusterOptions())):
        assert all(is_in("kubernetes.io/arch", ["arm64"]) in term for term in parts.terms)
