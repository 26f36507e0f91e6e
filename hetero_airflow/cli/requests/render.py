"""``airflow hetero render``: what a device task would send to Kubernetes, as YAML or JSON for ``kubectl``."""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml  # type: ignore[import-untyped]
from airflow.configuration import conf
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, TaskNotFound
from airflow.utils.cli import get_bagged_dag

from hetero_airflow.cli.action import action
from hetero_airflow.cli.output import console
from hetero_airflow.contract.envelope import unpack_request
from hetero_airflow.contract.rendering import render_arguments, run_context
from hetero_airflow.engines.kubernetes.claims.claim_template import template_for
from hetero_airflow.engines.kubernetes.options import cluster_options
from hetero_airflow.engines.kubernetes.pods.pod_merge import complete_pod
from hetero_airflow.engines.kubernetes.pods.pod_parts import claim_parts, pod_parts
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.request import DeviceRequest


@action
def render(args: Namespace) -> None:
    """Print the manifests of a task; parsing the DAG runs its file, as Airflow does."""
    with redirect_stdout(sys.stderr):  # the output is only the manifests, not what the DAG file prints or Airflow logs
        try:
            dag = get_bagged_dag(None, args.dag_id)
        except AirflowException as error:
            raise SettingsError(
                f"the DAG {shorten(args.dag_id)}",
                found="no DAG with this id that can be parsed",
                remedy="See `airflow dags list` and `airflow dags list-import-errors`",
            ) from error
        documents = manifests(dag, args.task_id, args.map_index, dra=args.dra, now=datetime.now(UTC))
    console().out(manifest_text(documents, args.output), end="")


def manifests(dag: DAG, task_id: str, map_index: int, *, dra: bool, now: datetime) -> list[dict[str, Any]]:
    """What would be sent for a task: the template of its claim, if it has one, then the pod.

    For a task of `DevicePodOperator` this is the operator's own pod. For any other device task it is the pod in which
    KubernetesExecutor runs it, without the command, which the scheduler adds.

    :raises SettingsError: no such task, or a task that requests no device
    :raises RequestError: a request that a pod can't express
    """
    asked = f"the task {shorten(task_id)}"
    try:
        task: Any = dag.get_task(task_id)
    except TaskNotFound as error:
        task_names = ", ".join(sorted(dag.task_ids)[:10])
        raise SettingsError(asked, found="no such task", remedy=f"Name one of {task_names}") from error
    if task.is_mapped and map_index < 0:
        raise SettingsError(asked, found="a mapped task", remedy="Name an instance: --map-index 0")
    context = run_context(dag.dag_id, "rendered", now, now, dag.params.dump(), {})
    if hasattr(getattr(task, "operator_class", task), "manifests"):
        return _operator_pod(task, map_index, context, dra)
    packed = unpack_request(task.executor_config, map_index)
    if packed is None:
        raise SettingsError(asked, found="no device request", remedy="Name a task that requests devices")
    request = packed if isinstance(packed, DeviceRequest) else render_arguments(packed, context)
    return _executor_pod(task, dag.dag_id, map_index, request, dra)


def manifest_text(documents: Sequence[Mapping[str, Any]], output: str) -> str:
    """The manifests as one text that ``kubectl apply -f -`` reads. It is ASCII, so that no name can harm a terminal.

    :param output: yaml or json

    >>> print(manifest_text([{"kind": "Pod", "metadata": {"name": "a\\x1b"}}], "yaml"), end="")
    kind: Pod
    metadata:
      name: "a\\e"
    """
    if output == "yaml":
        text: str = yaml.safe_dump_all(documents, sort_keys=False, width=10_000)
        return text
    items = list(documents)
    value = items[0] if len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items}
    return json.dumps(value, indent=2) + "\n"


def _operator_pod(task: Any, map_index: int, context: Mapping[str, Any], dra: bool) -> list[dict[str, Any]]:
    try:
        if task.is_mapped:
            instance = {**context, "ti": SimpleNamespace(map_index=map_index)}
            task = task.unmap(task._expand_mapped_kwargs(instance)[0])
        task.render_template_fields(context)
    except Exception as error:  # a template, or the list that a mapped task expands over, may raise anything
        raise SettingsError(
            f"the task {shorten(task.task_id)}",
            found=f"a value that is known only at run time: {shorten(str(error), 300)}",
            remedy="Name a task whose templates use only params, dag_run, run_id, ds or logical_date",
        ) from error
    documents: list[dict[str, Any]] = task.manifests(dra=dra)
    return documents


def _executor_pod(task: Any, dag_id: str, map_index: int, request: DeviceRequest, dra: bool) -> list[dict[str, Any]]:
    try:
        from airflow.providers.cncf.kubernetes.kube_config import KubeConfig
        from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import create_unique_id
        from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
        from kubernetes.client import V1Container, V1Pod, V1PodSpec  # type: ignore[import-untyped]
    except ImportError as error:
        remedy = 'Install "hetero-airflow[kubernetes]"'
        raise SettingsError("to render a pod of KubernetesExecutor", found=str(error), remedy=remedy) from error
    options = cluster_options(lambda section, name, default: conf.get(section, name, fallback=default))
    config: Any = KubeConfig()
    template = Path(config.pod_template_file) if config.pod_template_file else None
    bare = V1Pod(api_version="v1", kind="Pod", spec=V1PodSpec(containers=[V1Container(name="base")]))
    pod = PodGenerator.construct_pod(
        dag_id=dag_id,
        task_id=task.task_id,
        pod_id=create_unique_id(dag_id, task.task_id),
        try_number=1,
        kube_image=config.kube_image,
        date=None,
        args=[],
        pod_override_object=PodGenerator.from_obj(task.executor_config),
        base_worker_pod=PodGenerator.deserialize_model_file(str(template)) if template else bare,
        namespace=config.executor_namespace,
        scheduler_job_id="render",
        map_index=map_index,
        with_mutation_hook=True,
    )
    parts = claim_parts(request, options) if dra else pod_parts(request, options)
    complete = complete_pod(PodGenerator.serialize_pod(pod), parts)
    return [complete] if parts.claim is None else [template_for(parts.claim, complete), complete]
