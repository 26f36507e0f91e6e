"""A pod on devices, for any executor and for managed Airflow. Kubernetes places it, not `HeteroExecutor`."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar, Unpack

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.sdk import Context
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.xcom_arg import XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from kubernetes.client import (  # type: ignore[import-untyped]
    ApiException,
    V1Capabilities,
    V1SecurityContext,
)

from hetero_airflow.checkpoints import aws_connection, azure_connection
from hetero_airflow.checkpoints.opening import split_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.contract.envelope import is_template
from hetero_airflow.contract.operator_keywords import PodKeywords
from hetero_airflow.engines.kubernetes.claims.claim_client import ClaimClient
from hetero_airflow.engines.kubernetes.claims.claim_template import template_for
from hetero_airflow.engines.kubernetes.options import cluster_options
from hetero_airflow.engines.kubernetes.pods.pod_merge import complete_pod, restrict_pod
from hetero_airflow.engines.kubernetes.pods.pod_parts import LEFT_OUT_ANNOTATION, PodParts, claim_parts, pod_parts
from hetero_airflow.engines.kubernetes.renewing_hook import renewing_hook
from hetero_airflow.engines.kubernetes.states.causes import WAIT_CODES, PodCause
from hetero_airflow.engines.kubernetes.states.pod_state import PodState, pod_state
from hetero_airflow.errors import RequestError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.operators.checkpoints import CheckpointArguments, checkpoint_variables
from hetero_airflow.operators.requeue import requeued_by_rules
from hetero_airflow.operators.retry_policy import DeviceRetryPolicy
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.settings import CHECKPOINT_VARIABLE, DATA_VARIABLE
from hetero_airflow.units import MAX_DURATION_S

T = TypeVar("T")

_PUBLIC_VARIABLES = frozenset(
    {
        CHECKPOINT_VARIABLE,
        DATA_VARIABLE,
        aws_connection.ENDPOINT_VARIABLE,
        "AWS_DEFAULT_REGION",
        azure_connection.ENDPOINT_VARIABLE,
        "AZURE_STORAGE_ACCOUNT_NAME",
    }
)
"""Variables that are no secret."""
_OF_SIDECAR = V1SecurityContext(allow_privilege_escalation=False, capabilities=V1Capabilities(drop=["ALL"]))
_REQUEST_FIELDS = ("device", "quota", "runtime", "driver", "node_labels", "spot", "priority", "wait_timeout")


_LOST_CAUSES = frozenset({PodCause.EVICTED, PodCause.NODE_LOST, PodCause.REFUSED, PodCause.DELETED})


@contextmanager
def named_quota() -> Iterator[None]:
    """Within the context, a pod that a quota refuses fails with that cause."""
    try:
        yield
    except ApiException as error:
        if error.status != 403 or "exceeded quota" not in str(error.body):
            raise
        message = str(json.loads(error.body or "")["message"])
        failure = AirflowException(f"The cluster's quota refuses the pod: {message}")
        failure.evidence = Evidence(start_problem=message)  # type: ignore[attr-defined]
        raise failure from error


def pod_evidence(state: PodState) -> Evidence:
    """What the recovery rules can learn from how a pod ended.

    >>> from hetero_airflow.recovery.classification import classify
    >>> classify(pod_evidence(PodState(PodCause.NODE_LOST))).failure_class.value
    'lost_worker'
    """
    if state.cause in WAIT_CODES:
        return Evidence(start_problem=state.message or state.cause.value)
    if state.cause is PodCause.PREEMPTED:
        return Evidence(notice=f"Kubernetes ended its pod for another one: {state.message or 'of higher priority'}")
    if state.cause is PodCause.OOM_KILLED:
        return Evidence(exit_code=state.exit_code, oom_kills=1)
    if state.cause in _LOST_CAUSES:
        return Evidence(is_gone=True)
    return Evidence(exit_code=state.exit_code, log=state.message)


class DevicePodOperator(KubernetesPodOperator):
    """Airflow's KubernetesPodOperator with the arguments of `DeviceOperator`. The pod asks the cluster for the devices.

    The author's settings of the pod stay. The request adds resources, node affinity, tolerations and a restricted
    security context (user 1000; ``security_context={}`` for none) where the author set nothing. A pod asks for the
    first of several alternatives; with `dra`, the cluster's scheduler takes the first that fits. Airflow's
    ``pod_mutation_hook`` sees the pod before its devices.

    A pod waits for devices without a limit, unless `wait_timeout` or ``schedule_timeout_seconds`` sets one. If the pod
    is evicted, preempted or deleted, or its node is lost, no retry is used up if the recovery rules say so.

    :param device: as for `DeviceOperator`; a template, like the next seven
    :param quota: count, share, memory, cpus, host_memory
    :param runtime: software → version specifier; only CUDA's is checked, the others depend on the image
    :param driver: version specifier of the driver
    :param node_labels: label → value of the node (``labels`` are the pod's own, as in KubernetesPodOperator)
    :param spot: False: never on a node with the label ``hetero/spot``
    :param priority: urgent, high, medium or low; becomes the PriorityClass of ``[hetero] kubernetes_priority_classes``
    :param wait_timeout: fail after waiting for longer
    :param checkpoint: mapping as for `DeviceOperator`. The pod gets the place, but not the key of a connection, which
        everyone who may read pods would see: give the pod a service account, or a secret by ``env_from``
    :param dra: claim the devices by dynamic resource allocation (``resource.k8s.io/v1``, Kubernetes 1.34)
    :param kueue_queue: name of Kueue's LocalQueue
    :raises RequestError: when the DAG file is parsed, if a pod can't ask for the request
    """

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, *_REQUEST_FIELDS)
    hook = cached_property(renewing_hook)

    def __init__(
        self,
        *,
        task_id: str,
        device: Any,
        quota: Any = None,
        runtime: Any = None,
        driver: Any = None,
        node_labels: Any = None,
        spot: Any = None,
        priority: Any = None,
        wait_timeout: Any = None,
        checkpoint: Any = None,
        dra: bool = False,
        kueue_queue: str | None = None,
        schedule_timeout_seconds: int | None = None,
        **kwargs: Unpack[PodKeywords],
    ) -> None:
        kwargs.setdefault("xcom_sidecar_container_security_context", _OF_SIDECAR)
        super().__init__(
            task_id=task_id,
            schedule_timeout_seconds=schedule_timeout_seconds,
            **kwargs,
        )
        self.retry_policy = self.retry_policy or DeviceRetryPolicy()
        self._restricts_pod = kwargs.get("security_context") != {}
        self.device = device
        self.quota = quota
        self.runtime = runtime
        self.driver = driver
        self.node_labels = node_labels
        self.spot = spot
        self.priority = priority
        self.wait_timeout = wait_timeout
        self.checkpoint = None if checkpoint is None else CheckpointArguments.parse(checkpoint)
        self.dra = dra
        self.kueue_queue = kueue_queue
        self._device_classes: Collection[str] | None = None
        self._waits_by_itself = schedule_timeout_seconds is None
        given = [getattr(self, name) for name in _REQUEST_FIELDS]
        if not is_template(given) and not any(isinstance(value, XComArg) for value in given):
            self.pod_parts()

    def execute(self, context: Context) -> Any:
        """Run the pod and wait for its end."""
        if self._waits_by_itself:
            self.schedule_timeout_seconds = int(self._parsed(self._request).wait_timeout_s or MAX_DURATION_S)
        with requeued_by_rules(context, self.log):
            return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a deferral."""
        with requeued_by_rules(context, self.log):
            return super().resume_execution(next_method, next_kwargs, context)

    def pod_parts(self, dra: bool = False, device_classes: Collection[str] | None = None) -> PodParts:
        """What the request adds to the pod.

        :param dra: use a claim, even if the operator does not
        :param device_classes: the classes that the cluster has; None if that is unknown
        :raises RequestError: a pod can't ask for it
        """
        options = cluster_options(lambda section, name, default: conf.get(section, name, fallback=default))
        request = self._request()
        if dra or self.dra:
            return claim_parts(request, options, self.kueue_queue, device_classes)
        return pod_parts(request, options, self.kueue_queue)

    def manifests(self, dra: bool = False) -> list[dict[str, Any]]:
        """The objects that the operator would create: the template of the claim, if any, then the pod."""
        pod = super().build_pod_request_obj(None, dry_run=True)
        parts = self.pod_parts(dra)
        completed = self._complete(PodGenerator.serialize_pod(pod), parts)
        return [*([template_for(parts.claim, completed)] if parts.claim is not None else []), completed]

    def build_pod_request_obj(self, context: Context | None = None, *, dry_run: bool = False) -> Any:
        """The pod with the parts for its devices."""
        pod = PodGenerator.serialize_pod(super().build_pod_request_obj(context, dry_run=dry_run))
        parts = self._parsed(lambda: self._parts_in_cluster(context))
        if context is not None and self.checkpoint is not None:
            variables = checkpoint_variables(context, self.checkpoint, lease=None)
            parts = replace(parts, environment={**parts.environment, **self._public_variables(variables, pod)})
        return PodGenerator.deserialize_model_dict(self._complete(pod, parts))

    def get_or_create_pod(self, pod_request_obj: Any, context: Context) -> Any:
        """The pod of this task. Creates it if it is missing, after the template of its claim."""
        claim = self._parsed(lambda: self._parts_in_cluster(context)).claim
        if claim is None:
            with named_quota():
                return super().get_or_create_pod(pod_request_obj, context)
        template = template_for(claim, PodGenerator.serialize_pod(pod_request_obj))
        claims = ClaimClient(self.client.api_client)
        self._parsed(lambda: claims.create(template))
        try:
            with named_quota():
                pod = super().get_or_create_pod(pod_request_obj, context)
        except BaseException:
            claims.delete(template)
            raise
        is_known = pod.metadata.uid is not None
        claims.set_owner(template, pod if is_known else self.hook.get_pod(pod.metadata.name, pod.metadata.namespace))
        return pod

    def await_pod_start(self, pod: Any) -> None:
        """Wait until the pod runs. The exception for one that does not carries the cluster's message."""
        try:
            super().await_pod_start(pod)
        except AirflowException as error:
            error.evidence = pod_evidence(self._last_state(pod))  # type: ignore[attr-defined]
            raise

    def cleanup(
        self, pod: Any, remote_pod: Any, xcom_result: dict[Any, Any] | None = None, context: Context | None = None
    ) -> None:
        """Delete the pod, and fail if it failed. The exception carries evidence from the pod's state."""
        state = self._last_state(remote_pod)
        try:
            super().cleanup(pod, remote_pod, xcom_result, context)
        except AirflowSkipException:
            raise
        except AirflowException as error:
            self.log.warning("The pod's last state: %s%s", state.cause, f" ({state.message})" if state.message else "")
            error.evidence = pod_evidence(state)  # type: ignore[attr-defined]
            raise

    def _complete(self, pod: Mapping[str, Any], parts: PodParts) -> dict[str, Any]:
        restricted = restrict_pod(pod, self.base_container_name) if self._restricts_pod else pod
        return complete_pod(restricted, parts, self.base_container_name)

    def _request(self) -> DeviceRequest:
        given = {name: getattr(self, name) for name in _REQUEST_FIELDS}
        labels = given.pop("node_labels")
        return DeviceRequest.parse(given.pop("device"), labels=labels, **given)

    def _parsed(self, read: Callable[[], T]) -> T:
        """Read the request with its rendered templates. An invalid one fails the task, because no retry can cure it."""
        try:
            return read()
        except RequestError as error:
            raise AirflowFailException(str(error)) from error

    def _parts_in_cluster(self, context: Context | None) -> PodParts:
        """The parts for the pod in the cluster that runs it; without a context, for any cluster."""
        if not self.dra or context is None:
            return self.pod_parts()
        if self._device_classes is None:
            self._device_classes = ClaimClient(self.client.api_client).device_classes()
        parts = self.pod_parts(device_classes=self._device_classes)
        left_out = parts.annotations.get(LEFT_OUT_ANNOTATION)
        if left_out:
            self.log.info("The claim does not ask for %s.", left_out)
        return parts

    def _last_warning(self, pod: Any) -> str:
        """The last warning about a pod. Only there the cluster tells that it can't make the pod's claim."""
        try:
            events = self.pod_manager.read_pod_events(pod).items or ()
        except (ApiException, AirflowException):
            return ""
        return next((event.message or "" for event in reversed(events) if event.type == "Warning"), "")

    def _last_state(self, remote_pod: Any) -> PodState:
        """The pod's state now. KubernetesPodOperator may have read it only at the start."""
        known = pod_state(remote_pod, self.base_container_name)
        if remote_pod is None or remote_pod.status.phase in ("Succeeded", "Failed"):
            return known
        try:
            read = self.hook.get_pod(remote_pod.metadata.name, remote_pod.metadata.namespace)
        except ApiException as error:
            return PodState(PodCause.DELETED) if error.status == 404 else known
        state = pod_state(read, self.base_container_name)
        is_waiting = state.cause in WAIT_CODES
        return replace(state, message=self._last_warning(read)) if is_waiting and not state.message else state

    def _public_variables(self, variables: Mapping[str, str], pod: Mapping[str, Any]) -> dict[str, str]:
        """The checkpoints' variables that are no secret, for the pod."""
        url = CheckpointPlace.model_validate_json(variables[CHECKPOINT_VARIABLE]).url
        parts = split_url(url)
        if parts.scheme == "file" and not _is_mounted(parts.path, pod):
            remedy = "Mount one with volumes and volume_mounts, or use an object store"
            error = RequestError("checkpoint", url, found="no volume of the pod at that folder", remedy=remedy)
            raise AirflowFailException(str(error))
        public = {name: value for name, value in variables.items() if name in _PUBLIC_VARIABLES}
        if len(public) < len(variables):
            self.log.info("The pod does not get the key of [hetero] checkpoint_conn_id, because others could read it.")
        return public


def _is_mounted(folder: str, pod: Mapping[str, Any]) -> bool:
    mounts = [mount for container in pod["spec"]["containers"] for mount in container.get("volumeMounts") or []]
    paths = [str(mount.get("mountPath", "")).rstrip("/") for mount in mounts]
    return any(folder == path or folder.startswith(f"{path}/") for path in paths)
