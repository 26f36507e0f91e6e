"""Names and defaults of the options in the configuration section ``[hetero]``."""

from __future__ import annotations

from dataclasses import dataclass

SECTION = "hetero"

SIMULATED_DEVICES_VARIABLE = "HETERO_AIRFLOW_SIMULATED_DEVICES"
"""Environment variable that adds devices that are not there, marked simulated everywhere."""

LEASE_VARIABLE = "HETERO_AIRFLOW_LEASE"
"""Environment variable that holds a task's lease as JSON; subprocesses inherit it, which marks them as the lease's."""


CHECKPOINT_VARIABLE = "HETERO_AIRFLOW_CHECKPOINT"
"""Environment variable that says where a task's checkpoints are and how it is told to stop, as JSON."""

CONTROL_VARIABLE = "HETERO_AIRFLOW_CONTROL"
"""Environment variable that names the folder through which a task and its supervisor talk."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its default as written in a configuration file, and what it does."""

    name: str
    default: str
    type: str
    description: str


OPTIONS: tuple[Option, ...] = (
    Option(
        "policy",
        "assignment",
        "string",
        "Who goes first, and where: a name from the table in docs/scheduling.md, or an entry point. The default goes "
        "by class, weight and age, and puts tasks on the device models on which they have an advantage.",
    ),
    Option(
        "engine",
        "local",
        "string",
        "What runs device tasks and all others: local (LocalExecutor, on this host), celery (CeleryExecutor, on the "
        "workers that agents speak for), edge (EdgeExecutor, on edge workers, likewise), kubernetes "
        "(KubernetesExecutor, on the cluster's nodes), or an entry point.",
    ),
    Option(
        "pool",
        "hetero_devices",
        "string",
        "Airflow pool of device tasks. A task that waits for a device is QUEUED and holds a slot of its pool, so "
        "device tasks have one of their own; the executor creates it without a limit.",
    ),
    Option("queue", "hetero", "string", "Queue that [sdk] queue_to_coordinator maps to the device coordinator."),
    Option(
        "lease_timeout_s",
        "15",
        "float",
        "A lease that its executor has not renewed for this long is expired. Its devices stay held until the "
        "process is known to be gone.",
    ),
    Option("discovery_interval_s", "60", "float", "How often the executor looks at the hardware of its host again."),
    Option("probe_timeout_s", "10", "float", "Time limit of one vendor's probe."),
    Option(
        "worker_timeout_s",
        "13",
        "float",
        "A worker not seen for this long is lost: what ran there runs elsewhere, and it gets no new task. It says "
        "every 5 s that it is there, so that two of its words may get lost.",
    ),
    Option(
        "site_links",
        "{}",
        "string",
        'What the links of sites to other sites carry, in Gbit/s, as a JSON object, as in {"berlin": 40, "oslo": 10}; '
        "between two sites the slower counts. A site is what workers have as the label hetero/site; one that is not "
        "named here, and whose workers have no label hetero/site_gbps, has 10.",
    ),
    Option("history_days", "30", "float", "Ended requests, their leases and decisions are kept for this long."),
    Option(
        "shares",
        "",
        "string",
        "For the policy fair_share: teams with weights and quotas, PATH=WEIGHT or PATH=WEIGHT max DEVICES each, as in "
        "research=3, prod=5 max 8, research/nlp_*=2. The last name of a path is a pattern of DAG ids; a DAG that "
        "none matches is a team of its own with the weight 1.",
    ),
    Option(
        "checkpoint_url",
        "",
        "string",
        "Where checkpoints go: file:///shared/folder or s3://bucket/prefix. Empty: the folder checkpoints in "
        "AIRFLOW_HOME, which only this host sees.",
    ),
    Option(
        "checkpoint_conn_id",
        "",
        "string",
        "Airflow connection (type aws) with the key, the region and the endpoint_url of the object store. Empty: what "
        "boto3 finds by itself, at AWS's own endpoints.",
    ),
    Option(
        "checkpoint_endpoints",
        "",
        "string",
        "Endpoints of S3-compatible stores that tasks may use, as in https://minio.example:9000, separated by commas. "
        "That of the connection is allowed, and AWS's own are.",
    ),
    Option(
        "grace_s",
        "60",
        "float",
        "A task that is preempted has this long to save and end; then it is stopped, and goes on from its last "
        "checkpoint later.",
    ),
    Option(
        "hang_timeout_s",
        "900",
        "float",
        "A task that does nothing for this long, no step, no computation, nothing on its devices, has its stacks "
        "written into its log. After twice as long one that saves checkpoints is told to save and end, and comes back.",
    ),
    Option(
        "min_run_s",
        "300",
        "float",
        "Whoever got its devices keeps them for at least this long before they are taken back for a higher class.",
    ),
    Option(
        "recovery_rules",
        "{}",
        "string",
        "What to do about each class of failure, as a JSON object that is merged row by row into the table of "
        'hetero_airflow.recovery.rules, as in {"hung": {"action": "fail"}, "network": {"times": 2, "delay": "1m"}}.',
    ),
    Option(
        "kubernetes_resources",
        "{}",
        "string",
        "What a request says of its device, and the extended resource that stands for it in Kubernetes, as a JSON "
        'object such as {"gpu": "amd.com/gpu", "xilinx/u250": "xilinx.com/fpga-xilinx_u250_xdma-0"}. It comes '
        "before the table of hetero_airflow.engines.kubernetes.resources.",
    ),
    Option(
        "kubernetes_priority_classes",
        "{}",
        "string",
        "Priority of a request, and the PriorityClass of its pod, as a JSON object such as "
        '{"urgent": "gpu-urgent", "low": "gpu-spare"}. The classes must exist; a priority without one gets none.',
    ),
    Option(
        "kubernetes_clusters",
        "{}",
        "string",
        "Several clusters for the engine kubernetes, each a site with its Airflow connection (type kubernetes), as a "
        'JSON object such as {"eu": "kubernetes_eu", "us": "kubernetes_us"}. Tasks without a device go to the first. '
        "Empty: the one cluster of [kubernetes_executor].",
    ),
    Option("labels", "{}", "string", "Labels of this host's worker, as a JSON object of texts."),
)
"""Every option of the section, as provider info and `airflow hetero config` show it."""


def default(name: str) -> str:
    """The default of an option, as a configuration file would say it."""
    return next(option.default for option in OPTIONS if option.name == name)
