"""Names and defaults of the options in the configuration section ``[hetero]``."""

from dataclasses import dataclass

SECTION = "hetero"

SIMULATED_DEVICES_VARIABLE = "HETERO_AIRFLOW_SIMULATED_DEVICES"
"""Environment variable that adds simulated devices; they are marked as simulated everywhere."""

LEASE_VARIABLE = "HETERO_AIRFLOW_LEASE"
"""Environment variable with a task's lease as JSON. Subprocesses inherit it, and so belong to the lease."""

CHECKPOINT_VARIABLE = "HETERO_AIRFLOW_CHECKPOINT"
"""Environment variable with the place of a task's checkpoints and the way in which it is asked to stop, as JSON."""

DATA_VARIABLE = "HETERO_AIRFLOW_DATA_SETTINGS"
"""Environment variable with the cache folder of a task's host and the endpoints of its data, as JSON."""

CONTROL_VARIABLE = "HETERO_AIRFLOW_CONTROL"
"""Environment variable with the folder through which a task and its supervisor communicate."""

COMPRESS_GRADIENTS_VARIABLE = "HETERO_AIRFLOW_COMPRESS_GRADIENTS"
"""How the ranks of a task send gradients: one of `COMPRESSIONS`; empty for whole gradients."""

COMPRESSIONS = ("fp16", "powersgd")

TASK_SECRET_VARIABLE = "HETERO_AIRFLOW_TASK_SECRET"  # noqa: S105  only its name
"""Environment variable with the secret of the task's runs, with which they sign what they keep for each other."""

PROFILE_VARIABLE = "HETERO_AIRFLOW_PROFILE"
"""Environment variable: 1 lets the loop of `checkpoint.steps` profile some steps."""

IN_PROCESS_VARIABLE = "HETERO_AIRFLOW_IN_PROCESS"
"""Environment variable: 1 runs the device tasks of a local run in the process of `dag.test()`, for a debugger."""

AUDIT_EVENT = "hetero_airflow"
"""The event under which Airflow's audit log has what this plugin did with a task, and why."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option, its default as a configuration file writes it, and what it does."""

    name: str
    default: str
    type: str
    description: str
    is_secret: bool = False
    """Airflow does not print it, and reads it from a command or a secrets backend too."""


OPTIONS: tuple[Option, ...] = (
    Option(
        "policy",
        "assignment",
        "string",
        "Which task goes first, and where: a name from the table in docs/scheduling.md, or an entry point. The default "
        "orders by class, weight and age, and puts tasks on the device models on which they have an advantage.",
    ),
    Option(
        "engine",
        "local",
        "string",
        "What runs all tasks: local (LocalExecutor, on this host), celery (CeleryExecutor, on workers with an agent), "
        "edge (EdgeExecutor, on edge workers with an agent), kubernetes (KubernetesExecutor, on the cluster's nodes), "
        "or an entry point.",
    ),
    Option(
        "preload",
        "",
        "string",
        "Modules that the processes of tasks have imported before they start, such as torch,lightning. Only for "
        "engine = local and celery. A module must not use CUDA or start threads when it is imported (docs/preload.md).",
    ),
    Option(
        "pool",
        "hetero_devices",
        "string",
        "Airflow pool of device tasks. A task that waits for a device is QUEUED and holds a slot of its pool, so "
        "device tasks have their own pool. The executor creates it without a limit.",
    ),
    Option("queue", "hetero", "string", "Queue that [sdk] queue_to_coordinator maps to the device coordinator."),
    Option(
        "lease_timeout_s",
        "15",
        "float",
        "A lease expires if its executor has not renewed it for this long. Its devices stay held until the process is "
        "known to be gone.",
    ),
    Option(
        "discovery_interval_s",
        "60",
        "float",
        "How often the schedulers and the agents look at the hardware of their hosts again; at least twice "
        "probe_timeout_s.",
    ),
    Option("probe_timeout_s", "10", "float", "Time limit of one vendor's probe."),
    Option(
        "worker_timeout_s",
        "13",
        "float",
        "A worker without a heartbeat for this long is lost: it gets no new task, and its tasks run elsewhere. Workers "
        "send a heartbeat every 5 s, so two of them may get lost.",
    ),
    Option(
        "wait_for_hardware",
        "0",
        "string",
        "A task waits for this long for hardware that no known worker has, such as 10m in an autoscaled fleet. Its "
        "wait_timeout can only shorten this. 0: it fails at once. A task for a model that no table and no worker knows "
        "fails at once in any case.",
    ),
    Option(
        "forget_workers_after",
        "7d",
        "string",
        "A lost worker without leases is forgotten if it was not seen for this long, such as 12h or 7d. If it returns, "
        "it is known again. The last worker of its type and labels, and a worker that is drained or has a quarantined "
        "device, is kept for history_days. `airflow hetero forget NAME` forgets a worker at once.",
    ),
    Option(
        "site_links",
        "{}",
        "string",
        'Bandwidth of the links between sites in Gbit/s, as a JSON object, as in {"berlin": 40, "oslo": 10}. Between '
        "two sites the slower one counts. The site of a worker is its label hetero/site. A site that is not named "
        "here, and whose workers have no label hetero/site_gbps, has 10.",
    ),
    Option(
        "history_days",
        "30",
        "float",
        "Ended requests, their leases and decisions are kept for this long, and holds on workers that are forgotten.",
    ),
    Option(
        "shares",
        "",
        "string",
        "Teams with weights and quotas, as PATH=WEIGHT or PATH=WEIGHT max DEVICES, as in "
        "research=3, prod=5 max 8, research/nlp_*=2. The last name of a path is a pattern of DAG ids. A DAG that "
        "matches none is a team of its own with the weight 1. Quotas hold under every policy: above its quota, a team "
        "only borrows what no other team needs. Weights divide what is lent; the policy fair_share orders all teams "
        "by them.",
    ),
    Option(
        "prices",
        "{}",
        "string",
        'What an hour of a device costs, and an hour of a CPU\'s core, as a JSON object such as {"nvidia/h100": 2.5, '
        '"gpu": 1, "cpu": 0.02}, in any currency. `airflow hetero usage` and the page then show the cost of tasks.',
    ),
    Option(
        "checkpoint_url",
        "",
        "string",
        "Where checkpoints go: file:///shared/folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. "
        "Empty: the folder checkpoints in AIRFLOW_HOME, which only this host can read.",
    ),
    Option(
        "checkpoint_conn_id",
        "",
        "string",
        "Airflow connection (type aws, google_cloud_platform or wasb) with the credentials and the endpoint of the "
        "object store. Empty: what the provider's own tools find on the host, at the provider's endpoints.",
    ),
    Option(
        "checkpoint_endpoints",
        "",
        "string",
        "Other endpoints of object stores that tasks may use, as in https://minio.example:9000, separated by commas. "
        "The endpoint of the connection and those of AWS, Google and Azure are always allowed.",
    ),
    Option(
        "data_cache",
        "",
        "string",
        "The folder on each host for data that hetero_airflow.runtime.data reads from object stores; it must be on a "
        "local disk. Empty: hetero_airflow/data in the user's folder for caches.",
    ),
    Option(
        "data_cache_size",
        "",
        "string",
        "How much that folder may hold on each host, as in 500GB. What was not used for the longest time goes first. "
        "Empty: half of what its disk has free for it.",
    ),
    Option(
        "data_ahead",
        "yes",
        "string",
        "While a device task runs, a process at the lowest priority reads the data of the device tasks that directly "
        "follow (data=) into its host's cache, up to a quarter of what that may hold. no: a task reads only its own.",
    ),
    Option(
        "grace_s",
        "60",
        "float",
        "A task that is preempted, or whose scheduler stops on its host, has this long to save and end. Then it is "
        "stopped, and later goes on from its last checkpoint.",
    ),
    Option(
        "hang_timeout_s",
        "900",
        "float",
        "If a task makes no step, uses no CPU and does nothing on its devices for this long, its stacks are written to "
        "its log. After twice as long, a task that saves checkpoints is asked to save and end, and runs again.",
    ),
    Option(
        "min_run_s",
        "300",
        "float",
        "A task keeps its devices for at least this long before a policy takes them back.",
    ),
    Option(
        "preempt_within_class",
        "yes",
        "string",
        "Whether the policies that order by priority class may take the devices of a task back for another one of the "
        "same class, if both together gain. no: they take devices back for higher classes alone, as priority does.",
    ),
    Option(
        "patience",
        "yes",
        "string",
        "With preempt_within_class = no: whether a task may wait for better devices while others are free, if that "
        "probably pays. no: every task takes devices as soon as some are free.",
    ),
    Option(
        "recovery_rules",
        "{}",
        "string",
        "What to do after each class of failure, as a JSON object. It is merged row by row into the table of "
        'hetero_airflow.recovery.rules, as in {"hung": {"action": "fail"}, "network": {"times": 2, "delay": "1m"}}.',
    ),
    Option(
        "kubernetes_resources",
        "{}",
        "string",
        "The device of a request, and the extended resource for it in Kubernetes, as a JSON object such as "
        '{"gpu": "amd.com/gpu", "xilinx/u250": "xilinx.com/fpga-xilinx_u250_xdma-0"}. It overrides the table of '
        "hetero_airflow.engines.kubernetes.resources.",
    ),
    Option(
        "kubernetes_priority_classes",
        "{}",
        "string",
        "Priority of a request, and the PriorityClass of its pod, as a JSON object such as "
        '{"urgent": "gpu-urgent", "low": "gpu-spare"}. The classes must exist. A priority that is not named gets none.',
    ),
    Option(
        "kubernetes_clusters",
        "{}",
        "string",
        "Several clusters for the engine kubernetes: each site with its Airflow connection (type kubernetes), as a "
        'JSON object such as {"eu": "kubernetes_eu", "us": "kubernetes_us"}. Tasks without a device run in the first. '
        "Empty: the one cluster of [kubernetes_executor].",
    ),
    Option(
        "allowed_device_processes",
        "nvidia-persiste,nv-hostengine,dcgm-exporter,nvidia-smi,nvtop,amd-smi,rocm-smi,npu-smi,Xorg,Xwayland,gnome-shell",
        "string",
        "Processes that may use devices beside the tasks, such as display servers and monitoring: names as in "
        "/proc/PID/comm, at most 15 characters, separated by commas. A device that any other process uses outside of "
        "all leases gets no task. * allows all.",
    ),
    Option(
        "exclude_devices",
        "",
        "string",
        "Devices of this host that no task gets: ids, PCI addresses, or texts such as nvidia/t4, separated by commas. "
        "They stay visible. An agent or a scheduler that was started with CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, "
        "ASCEND_RT_VISIBLE_DEVICES or TPU_VISIBLE_CHIPS offers only those devices in any case.",
    ),
    Option(
        "spot_notices",
        "",
        "string",
        "What tells that this host's spot machine is taken back: aws, gcp or azure for the provider's metadata server, "
        "or the path of a file that exists once this is so. The worker then gets no new task, and its tasks save and "
        "move at once. Empty: nothing is asked.",
    ),
    Option(
        "kubernetes_agents",
        "",
        "string",
        "Service accounts whose pods may run agents and enrol by their own token, as NAMESPACE/NAME, separated by "
        "commas. The worker then has the pod's name. Empty: none.",
    ),
    Option(
        "metrics_token",
        "",
        "string",
        "The token that Prometheus sends to read /hetero/metrics, at least 16 characters. Empty: nobody reads them.",
        is_secret=True,
    ),
    Option("labels", "{}", "string", "Labels of this host's worker, as a JSON object of texts."),
)
"""Every option of the section, as provider info and `airflow hetero config` show it."""


def default(name: str) -> str:
    """The default of an option, as a configuration file writes it."""
    return next(option.default for option in OPTIONS if option.name == name)
