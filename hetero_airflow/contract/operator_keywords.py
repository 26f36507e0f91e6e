"""The keywords of Airflow's operators, for type checkers. tools/operator_keywords.py wrote them."""

# ruff: noqa: RUF036
# mypy: disable-error-code="type-arg"
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Callable, Collection, Container, Iterable, Sequence
    from datetime import datetime, timedelta
    from typing import Literal

    from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
    from airflow.providers.cncf.kubernetes.secret import Secret
    from airflow.sdk import DAG, Context, RetryPolicy, TaskGroup
    from airflow.sdk.types import WeightRuleParam
    from kubernetes.client import models as k8s  # type: ignore[import-untyped]

    TaskStateChangeCallback = Callable[[Context], None]
    TaskPreExecuteHook = Callable[[Context], None]
    TaskPostExecuteHook = Callable[[Context, Any], None]


class OperatorKeywords(TypedDict, total=False):
    """Those of BaseOperator."""

    owner: str
    email: str | Sequence[str] | None
    email_on_retry: bool
    email_on_failure: bool
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: RetryPolicy | None
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    dag: DAG | None
    params: collections.abc.MutableMapping[str, Any] | None
    default_args: dict | None
    priority_weight: int
    weight_rule: WeightRuleParam
    queue: str
    pool: str | None
    pool_slots: int
    sla: timedelta | None
    execution_timeout: timedelta | None
    on_execute_callback: None | TaskStateChangeCallback | Collection[TaskStateChangeCallback]
    on_failure_callback: None | TaskStateChangeCallback | list[TaskStateChangeCallback]
    on_success_callback: None | TaskStateChangeCallback | Collection[TaskStateChangeCallback]
    on_retry_callback: None | TaskStateChangeCallback | list[TaskStateChangeCallback]
    on_skipped_callback: None | TaskStateChangeCallback | Collection[TaskStateChangeCallback]
    pre_execute: TaskPreExecuteHook | None
    post_execute: TaskPostExecuteHook | None
    trigger_rule: str
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict | None
    do_xcom_push: bool
    multiple_outputs: bool
    inlets: Any | None
    outlets: Any | None
    task_group: TaskGroup | None
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class SensorKeywords(OperatorKeywords, total=False):
    """Those of BaseSensorOperator."""

    poke_interval: timedelta | float
    timeout: timedelta | float | None
    soft_fail: bool
    mode: str
    exponential_backoff: bool
    max_wait: timedelta | float | None
    silent_fail: bool
    never_fail: bool


class BashKeywords(TypedDict, total=False):
    """Those of BashOperator."""

    env: dict[str, str] | None
    append_env: bool
    output_encoding: str
    skip_on_exit_code: int | Container[int] | None
    cwd: str | None
    output_processor: Callable[[str], Any]


class PythonKeywords(TypedDict, total=False):
    """Those of PythonOperator."""

    templates_dict: dict[str, Any] | None
    templates_exts: Sequence[str] | None
    show_return_value_in_logs: bool


class PodKeywords(OperatorKeywords, total=False):
    """Those of KubernetesPodOperator."""

    kubernetes_conn_id: str | None
    namespace: str | None
    image: str | None
    name: str | None
    random_name_suffix: bool
    cmds: list[str] | None
    arguments: list[str] | None
    ports: list[k8s.V1ContainerPort] | None
    volume_mounts: list[k8s.V1VolumeMount] | None
    volumes: list[k8s.V1Volume] | None
    env_vars: list[k8s.V1EnvVar] | dict[str, str] | None
    env_from: list[k8s.V1EnvFromSource] | None
    secrets: list[Secret] | None
    in_cluster: bool | None
    cluster_context: str | None
    labels: dict | None
    reattach_on_restart: bool | None
    durable: bool | None
    startup_timeout_seconds: int
    startup_check_interval_seconds: int
    get_logs: bool
    base_container_name: str | None
    base_container_status_polling_interval: float
    init_container_logs: Iterable[str] | str | Literal[True] | None
    container_logs: Iterable[str] | str | Literal[True] | None
    image_pull_policy: str | None
    annotations: dict | None
    container_resources: k8s.V1ResourceRequirements | None
    affinity: k8s.V1Affinity | None
    config_file: str | None
    runtime_class_name: str | None
    node_selector: dict | None
    image_pull_secrets: list[k8s.V1LocalObjectReference] | None
    service_account_name: str | None
    automount_service_account_token: bool | None
    hostnetwork: bool
    host_aliases: list[k8s.V1HostAlias] | None
    tolerations: list[k8s.V1Toleration] | None
    security_context: k8s.V1PodSecurityContext | dict | None
    container_security_context: k8s.V1SecurityContext | dict | None
    xcom_sidecar_container_security_context: k8s.V1SecurityContext | dict | None
    dnspolicy: str | None
    dns_config: k8s.V1PodDNSConfig | None
    hostname: str | None
    subdomain: str | None
    schedulername: str | None
    full_pod_spec: k8s.V1Pod | None
    init_containers: list[k8s.V1Container] | None
    log_events_on_failure: bool
    log_events_on_startup: bool
    pod_template_file: str | None
    pod_template_dict: dict | None
    priority_class_name: str | None
    pod_runtime_info_envs: list[k8s.V1EnvVar] | None
    termination_grace_period: int | None
    configmaps: list[str] | None
    skip_on_exit_code: int | Container[int] | None
    deferrable: bool
    poll_interval: float
    log_pod_spec_on_failure: bool
    on_finish_action: str
    on_kill_action: str
    is_delete_operator_pod: None | bool
    termination_message_policy: str
    active_deadline_seconds: int | None
    callbacks: list[type[KubernetesPodOperatorCallback]] | type[KubernetesPodOperatorCallback] | None
    progress_callback: Callable[[str], None] | None
    logging_interval: int | None
    trigger_kwargs: dict | None
    container_name_log_prefix_enabled: bool
    log_formatter: Callable[[str, str], str] | None
