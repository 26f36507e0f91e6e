import json
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException
from airflow.serialization.serialized_objects import DagSerialization
from kubernetes import client

from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.contract.envelope import ENVELOPE_KEY
from hetero_airflow.engines.kubernetes.states.causes import WAIT_CODES, PodCause
from hetero_airflow.engines.kubernetes.states.pod_state import PodState
from hetero_airflow.errors import RequestError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.operators import DevicePodOperator
from hetero_airflow.operators.mapped import complete_mapped_task
from hetero_airflow.operators.pod import pod_evidence
from hetero_airflow.operators.retry_policy import DeviceRetryPolicy
from hetero_airflow.recovery.classification import classify
from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.settings import CHECKPOINT_VARIABLE
from tests.kubernetes_bodies import check_body, check_pod
from tests.operators.fake_cluster import a_status, ended, running_cluster

GPU_2 = {"nvidia.com/gpu": "2"}


def an_operator(device="nvidia:2", **arguments):
    return DevicePodOperator(task_id="t", name="t", namespace="ml", image="i", device=device, **arguments)


def made(operator):
    """The pod that it would send, without a cluster."""
    return PodGenerator.serialize_pod(operator.build_pod_request_obj(dry_run=True))


def base(pod):
    return next(container for container in pod["spec"]["containers"] if container["name"] == "base")


class TestPod:
    def test_it_is_kubernetes_pod_operators_with_the_devices(self):
        pod = made(an_operator(quota={"cpus": 4}, labels={"team": "a"}, kueue_queue="q", env_vars={"A": "1"}))
        check_pod(pod)
        assert base(pod)["resources"] == {"limits": {**GPU_2, "cpu": "4"}, "requests": {**GPU_2, "cpu": "4"}}
        assert {"team": "a", "kueue.x-k8s.io/queue-name": "q"}.items() <= pod["metadata"]["labels"].items()
        assert base(pod)["env"] == [{"name": "A", "value": "1"}]

    def test_settings_of_the_author_stay(self):
        full_spec = client.V1Pod(
            metadata=client.V1ObjectMeta(annotations={"a": "b"}),
            spec=client.V1PodSpec(
                containers=[client.V1Container(name="base", image="other")],
                tolerations=[client.V1Toleration(key="x", operator="Exists")],
            ),
        )
        resources = client.V1ResourceRequirements(limits={"memory": "1Gi"})
        operator = DevicePodOperator(
            task_id="t", namespace="ml", device="nvidia:2", full_pod_spec=full_spec, container_resources=resources,
            quota={"host_memory": "8GiB"}, node_selector={"disk": "ssd"}, priority_class_name="own",
            container_security_context={"runAsNonRoot": True},
        )  # fmt: skip
        pod = made(operator)
        check_pod(pod)
        assert base(pod)["resources"] == {"limits": {"memory": "1Gi", **GPU_2}, "requests": GPU_2}
        assert base(pod)["image"] == "other"
        assert base(pod)["securityContext"]["runAsNonRoot"] is True
        assert [toleration["key"] for toleration in pod["spec"]["tolerations"]] == ["x", "nvidia.com/gpu"]
        assert (pod["spec"]["nodeSelector"], pod["spec"]["priorityClassName"]) == ({"disk": "ssd"}, "own")
        assert pod["metadata"]["annotations"]["a"] == "b"

    @pytest.mark.parametrize("do_xcom_push", [False, True])
    def test_pod_security_admits_it_to_a_restricted_namespace(self, do_xcom_push):
        pod = made(an_operator(do_xcom_push=do_xcom_push))
        check_pod(pod)
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert len(pod["spec"]["containers"]) == 1 + do_xcom_push
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}

    @pytest.mark.parametrize(
        "groups", [{"supplementalGroups": [44, 109]}, client.V1PodSecurityContext(supplemental_groups=[44, 109])]
    )
    def test_groups_for_device_files_are_added_to_the_restricted_context(self, groups):
        assert made(an_operator(security_context=groups))["spec"]["securityContext"] == {
            "supplementalGroups": [44, 109],
            "seccompProfile": {"type": "RuntimeDefault"},
            "runAsNonRoot": True,
            "runAsUser": 1000,
        }

    def test_a_security_context_of_the_author_stays(self):
        own = client.V1PodSecurityContext(run_as_user=7)
        full_spec = client.V1Pod(spec=client.V1PodSpec(containers=[], security_context=own))
        for operator in (an_operator(security_context=own), an_operator(full_pod_spec=full_spec)):
            assert made(operator)["spec"]["securityContext"] == {"runAsUser": 7}
        assert "runAsNonRoot" not in made(an_operator(security_context={}))["spec"].get("securityContext", {})
        of_container = made(an_operator(container_security_context={"runAsUser": 0}))
        assert of_container["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}

    def test_labels_are_the_pods_and_node_labels_the_nodes(self):
        pod = made(an_operator(node_labels={"zone": "a"}, labels={"zone": "b"}))
        term = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["nodeSelectorTerms"][0]["matchExpressions"][0] == {"key": "zone", "operator": "In", "values": ["a"]}
        assert pod["metadata"]["labels"]["zone"] == "b"

    def test_the_options_of_the_installation_count(self, monkeypatch):
        monkeypatch.setenv("AIRFLOW__HETERO__KUBERNETES_RESOURCES", '{"nvidia": "nvidia.com/own"}')
        monkeypatch.setenv("AIRFLOW__HETERO__KUBERNETES_PRIORITY_CLASSES", '{"low": "spare"}')
        pod = made(an_operator({"vendor": "nvidia"}, priority="low"))
        assert pod["spec"]["priorityClassName"] == "spare"
        assert base(pod)["resources"]["limits"] == {"nvidia.com/own": "1"}

    def test_by_a_claim_the_template_comes_before_the_pod(self):
        claim, pod = an_operator(["h100:2", "a100:2"], dra=True).manifests()
        check_body(claim, "V1ResourceClaimTemplate")
        check_pod(pod)
        assert claim["metadata"]["namespace"] == "ml"
        assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == claim["metadata"]["name"]
        assert len(an_operator().manifests()) == 1
        assert len(an_operator().manifests(dra=True)) == 2


class TestDagFile:
    def test_a_request_that_a_pod_can_not_make_is_an_error_of_the_dag_file(self):
        with pytest.raises(RequestError, match="topology manager"):
            an_operator({"device": "nvidia:2", "topology": "nvlink"})
        with pytest.raises(RequestError, match="no known value of the node label"):
            an_operator("nvidia/x1000")
        an_operator("nvidia/x1000", dra=True)  # a claim compares names by itself

    def test_templates_are_rendered_before_they_are_read(self):
        operator = an_operator("nvidia:{{ params.n }}", quota={"cpus": 2}, priority="{{ params.p }}")
        with DAG("d", schedule=None):
            pass
        operator.render_template_fields({"params": {"n": 3, "p": "low"}})
        assert base(made(operator))["resources"]["limits"] == {"nvidia.com/gpu": "3", "cpu": "2"}

    def test_a_rendered_request_that_is_none_fails_without_a_retry(self):
        operator = an_operator("{{ params.device }}")
        operator.render_template_fields({"params": {"device": "gpuu"}})
        with pytest.raises(AirflowFailException, match="Did you mean"):
            operator.build_pod_request_obj(dry_run=True)

    def test_it_is_no_task_for_our_executor(self):
        assert ENVELOPE_KEY not in (an_operator().executor_config or {})
        with DAG("d", schedule=None):
            mapped = DevicePodOperator.partial(task_id="t", name="t", image="i").expand(device=["nvidia", "nvidia:2"])
        complete_mapped_task(mapped)
        assert mapped.partial_kwargs.get("executor_config") in (None, {})
        second = mapped.unmap({"device": "nvidia:2"})
        assert base(made(second))["resources"]["limits"] == GPU_2

    def test_it_can_be_serialized_with_any_form_of_a_request(self):
        with DAG("d", schedule=None) as dag:
            for number, device in enumerate(
                ["nvidia", ["h100", "cpu:2"], {"a100", "h100"}, DeviceRequest.parse("nvidia:2")]
            ):
                DevicePodOperator(task_id=f"t{number}", name="t", image="i", device=device)
        assert set(DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_ids) == {"t0", "t1", "t2", "t3"}

    def test_the_package_is_imported_without_the_provider(self):
        """An installation without Kubernetes has the other operators all the same."""
        script = (
            "import sys, hetero_airflow.operators as o\n"
            "provider = 'airflow.providers.cncf.kubernetes.operators.pod'\n"
            "assert not {'kubernetes', provider} & set(sys.modules)\n"
            "sys.modules[provider] = None\n"
            "try: o.DevicePodOperator\n"
            "except ImportError: print('needs the provider')\n"
            "assert not hasattr(o, 'NoSuchOperator')\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[-1:] == ["needs the provider"], done.stderr


@pytest.fixture
def cluster(tmp_path):
    with running_cluster(tmp_path) as (cluster, config):
        cluster.config = config
        yield cluster


def a_context(**more):
    ti = SimpleNamespace(
        dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1, max_tries=1, xcom_push=lambda **_: None
    )
    return {"ti": ti, "dag": None, "run_id": "r", "dag_run": SimpleNamespace(run_id="r"), **more}


def on(cluster, device="nvidia:2", **arguments):
    settings = {"in_cluster": False, "config_file": cluster.config, "kubernetes_conn_id": None, "get_logs": False}
    settings |= {"startup_check_interval_seconds": 0.01, "base_container_status_polling_interval": 0.01}
    return an_operator(device, **settings, **arguments)


class TestRun:
    def test_the_pod_is_sent_and_its_end_is_the_tasks(self, cluster):
        on(cluster).execute(a_context())
        (pod,) = cluster.created
        check_pod(pod)
        assert base(pod)["resources"]["limits"] == GPU_2
        assert pod["metadata"]["labels"]["task_id"] == "t"
        assert cluster.deleted == [pod["metadata"]["name"]]
        assert cluster.templates == []

    @pytest.mark.parametrize("code", [201, 409])
    def test_the_template_of_the_claim_is_there_before_the_pod(self, cluster, code):
        cluster.template_answer = code
        on(cluster, dra=True).execute(a_context())
        (template,), (pod,) = cluster.templates, cluster.created
        check_body(template, "V1ResourceClaimTemplate")
        claim = pod["spec"]["resourceClaims"][0]
        assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]

    @pytest.mark.parametrize(("code", "message"), [(403, "service account"), (404, "Kubernetes 1.34")])
    def test_a_cluster_without_claims_is_an_error_that_says_what_it_lacks(self, cluster, code, message):
        cluster.template_answer = code
        with pytest.raises(AirflowFailException, match=message):
            on(cluster, dra=True).execute(a_context())
        assert cluster.created == []

    def test_alternatives_whose_class_the_cluster_lacks_are_left_out(self, cluster):
        """One alternative with a missing class would keep the cluster from allocating any."""
        cluster.device_classes = ["gpu.nvidia.com"]
        on(cluster, ["mi300x:2", "a100:2", "h100"], dra=True).execute(a_context())
        (template,), (pod,) = cluster.templates, cluster.created
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        assert [choice["deviceClassName"] for choice in request["firstAvailable"]] == ["gpu.nvidia.com"] * 2
        left_out = pod["metadata"]["annotations"]["hetero-airflow/left-out"]
        assert left_out == "2 × amd/mi300x (the cluster has no DeviceClass gpu.amd.com)"

    def test_a_request_without_any_class_of_the_cluster_is_refused(self, cluster):
        cluster.device_classes = ["gpu.intel.com"]
        with pytest.raises(AirflowFailException, match=r"no DeviceClass gpu\.amd\.com.*gpu\.intel\.com"):
            on(cluster, ["mi300x", "a100"], dra=True).execute(a_context())
        assert (cluster.created, cluster.templates) == ([], [])

    def test_without_the_right_to_read_classes_all_alternatives_are_asked_for(self, cluster, caplog):
        cluster.device_classes = []
        on(cluster, ["mi300x", "a100"], dra=True).execute(a_context())
        assert "deviceclasses" in caplog.text
        assert len(cluster.templates[0]["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]) == 2

    @pytest.mark.parametrize("knows_sharing", [True, False])
    def test_a_whole_device_is_none_that_others_may_share(self, cluster, knows_sharing):
        cluster.knows_sharing = knows_sharing
        on(cluster, "a100", dra=True).execute(a_context())
        (template,), (pod,) = cluster.templates, cluster.created
        assert ("!device.allowMultipleAllocations" in json.dumps(template)) == knows_sharing
        assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]

    def test_a_share_is_refused_by_a_cluster_that_shares_no_devices(self, cluster):
        cluster.knows_sharing = False
        with pytest.raises(AirflowFailException, match="share"):
            on(cluster, "nvidia:0.5", dra=True).execute(a_context())
        assert cluster.created == []

    def test_the_template_has_our_labels_and_its_pod_owns_it(self, cluster):
        on(cluster, "a100", dra=True).execute(a_context())
        (template,), (pod,) = cluster.templates, cluster.created
        check_body(template, "V1ResourceClaimTemplate")
        labels = template["metadata"]["labels"]
        assert (labels["app.kubernetes.io/managed-by"], labels["task_id"]) == ("hetero-airflow", "t")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": "uid-1"}
        assert template["metadata"]["ownerReferences"] == [owner]

    def test_each_task_has_a_template_of_its_own(self, cluster):
        for _ in range(2):
            on(cluster, "a100", dra=True).execute(a_context())
        names = [template["metadata"]["name"] for template in cluster.templates]
        assert len(set(names)) == 2

    @pytest.mark.parametrize(
        ("message", "events", "found"),
        [
            ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", [], "2 Insufficient nvidia.com/gpu"),
            ("", ["resourceclaims is forbidden: exceeded quota: gpus, used: 4, limited: 4"], "exceeded quota: gpus"),
        ],
    )
    def test_a_wait_that_ends_says_what_it_waited_for(self, cluster, message, events, found):
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        cluster.status = {"phase": "Pending", "conditions": [unscheduled]}
        about = {"involvedObject": {}, "metadata": {"name": "e"}, "reason": "FailedResourceClaimCreation"}
        cluster.events = [{**about, "type": "Warning", "message": text} for text in events]
        with pytest.raises(AirflowException) as caught:
            on(cluster, schedule_timeout_seconds=1).execute(a_context())
        failure = classify(caught.value.evidence)
        assert failure.failure_class is FailureClass.NO_START
        assert found in failure.evidence

    def test_an_exceeded_quota_is_named(self, cluster):
        message = 'pods "t" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, limited: 4'
        cluster.pod_refusal = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": message}
        with pytest.raises(AirflowException, match="exceeded quota: gpus") as caught:
            on(cluster).execute(a_context())
        assert classify(caught.value.evidence).failure_class is FailureClass.NO_START

    def test_a_refused_pod_leaves_no_template(self, cluster):
        cluster.pod_refusal = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "no"}
        with pytest.raises(client.ApiException):
            on(cluster, "a100", dra=True).execute(a_context())
        assert cluster.templates == []

    @pytest.mark.parametrize(
        ("given", "seconds"),
        [({}, 366 * 86400), ({"wait_timeout": "2h"}, 7200), ({"schedule_timeout_seconds": 30}, 30)],
    )
    def test_it_waits_for_devices_for_the_given_time(self, cluster, given, seconds):
        operator = on(cluster, **given)
        operator.execute(a_context())
        assert operator.schedule_timeout_seconds == seconds

    def test_an_error_of_its_own_is_left_to_the_retries(self, cluster):
        cluster.status = ended(3)
        with pytest.raises(AirflowException, match="returned a failure") as caught:
            on(cluster).execute(a_context())
        decision = DeviceRetryPolicy().evaluate(caught.value, 1, 3)
        assert decision.action.value == "retry"
        assert classify(caught.value.evidence).failure_class is FailureClass.UNKNOWN

    @pytest.mark.parametrize(
        "status",
        [
            ended(137, "ContainerStatusUnknown", reason="Evicted", message="The node was low on resource: memory."),
            ended(137, conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]),
            ended(137, conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]),
            {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed due to no devices."},
        ],
    )
    def test_a_pod_that_ended_for_no_fault_of_its_own_costs_no_retry(self, cluster, status):
        cluster.status = status
        with pytest.raises(AirflowRescheduleException):
            on(cluster).execute(a_context())

    def test_a_pod_that_was_deleted_by_hand_costs_no_retry(self, cluster, caplog):
        caplog.set_level(logging.WARNING)
        cluster.status = a_status("Running", {"running": {}})
        cluster.is_forgetful = True
        with pytest.raises(AirflowRescheduleException):
            on(cluster).execute(a_context())


class TestCheckpoint:
    def place(self, cluster):
        variables = {variable["name"]: variable.get("value") for variable in base(cluster.created[0])["env"]}
        return CheckpointPlace.model_validate(json.loads(variables[CHECKPOINT_VARIABLE])), variables

    def test_the_pod_gets_the_place(self, cluster):
        on(cluster, checkpoint={"url": "s3://models/a", "keep_last": 5}).execute(a_context())
        place, _ = self.place(cluster)
        assert (place.url, place.path, place.keep_last) == ("s3://models/a", "d/t/r/-1", 5)

    def test_without_the_argument_the_pod_gets_no_place(self, cluster):
        on(cluster).execute(a_context())
        assert CHECKPOINT_VARIABLE not in json.dumps(cluster.created)

    def test_no_key_stands_in_the_pod(self, cluster, monkeypatch):
        extra = {"region_name": "eu", "aws_session_token": "s3cret-token"}
        connection = {"conn_type": "aws", "login": "s3cret-id", "password": "s3cret-key", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
        monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_CONN_ID", "store")
        on(cluster, checkpoint={"url": "s3://models/a"}).execute(a_context())
        assert "s3cret" not in json.dumps(cluster.created)
        assert self.place(cluster)[1]["AWS_DEFAULT_REGION"] == "eu"

    def test_a_folder_that_the_pod_does_not_see_is_refused(self, cluster):
        with pytest.raises(AirflowFailException, match="no volume of the pod"):
            on(cluster, checkpoint={"url": "file:///mnt/ckpt"}).execute(a_context())
        mount = client.V1VolumeMount(name="v", mount_path="/mnt/")
        volume = client.V1Volume(name="v", empty_dir=client.V1EmptyDirVolumeSource())
        on(cluster, checkpoint={"url": "file:///mnt/ckpt"}, volumes=[volume], volume_mounts=[mount]).execute(
            a_context()
        )
        assert self.place(cluster)[0].url == "file:///mnt/ckpt"


@pytest.mark.parametrize("cause", PodCause)
def test_each_cause_has_a_class_of_failure(cause):
    expected = {
        PodCause.OOM_KILLED: FailureClass.HOST_MEMORY,
        PodCause.PREEMPTED: FailureClass.PREEMPTED,
        **dict.fromkeys(
            (PodCause.EVICTED, PodCause.NODE_LOST, PodCause.REFUSED, PodCause.DELETED), FailureClass.LOST_WORKER
        ),
        **dict.fromkeys(WAIT_CODES, FailureClass.NO_START),
    }
    decision = classify(pod_evidence(PodState(cause, "m", 1)))
    assert decision.failure_class is expected.get(cause, FailureClass.UNKNOWN)


def test_the_last_lines_of_the_container_are_evidence():
    state = PodState(PodCause.FAILED, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 1)
    assert classify(pod_evidence(state)).failure_class is FailureClass.DEVICE_MEMORY
    assert classify(pod_evidence(PodState(PodCause.FAILED, "", 137))).failure_class is FailureClass.LOST_WORKER
