"""Alibaba's GPU trace of 2023: pods with CPU, memory, whole and shared GPUs, on 1213 nodes with 6212 GPUs of 7 models.

Published with "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent"
(USENIX ATC 2023) at https://github.com/alibaba/clusterdata (cluster-trace-gpu-v2023) and
https://github.com/hkust-adsl/kubernetes-scheduler-simulator, Apache-2.0 licence. Columns:

``openb_node_list_gpu_node.csv`` (or ``.csv.gz``)
    sn, cpu_milli, memory_mib, gpu, model
``openb_pod_list_<mix>.csv``
    name, cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU; 1000 is a whole GPU), and in most of them
    gpu_spec (``V100M16|V100M32``: the accepted models), qos, creation_time, deletion_time and
    scheduled_time (seconds; empty if the pod never ran)

``openb/<mix>`` replays a list by its times. ``openb/<mix>_fill1.3_seed42`` is the publisher's experiment instead: pods
arrive one after another and never leave, until they request 1.3 times the GPUs of the cluster.
"""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from hetero_airflow.errors import TraceError, shorten
from hetero_airflow.model.devices.names import MAX_COUNT
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.worker import MAX_DEVICES, Worker
from hetero_airflow.simulator.cluster import simulated_worker
from hetero_airflow.simulator.traces.files import Row, csv_rows, find_file, trace_folder, unique
from hetero_airflow.simulator.workload import Job, Workload

CORE_MILLI = 100
"""One core of the simulated CPUs is a tenth of a real one. Cores are leased whole, and 5603 of the 8152 pods of the
default mix request a fraction: rounded up to cores they request 3.8 % more CPU, rounded up to tenths 0.2 %. This
matters, since they request 104 % of the CPUs when they request 130 % of the GPUs."""

FOREVER_S = 1e8
"""Three years: after any arrival, and before the end of the simulator's leases."""
_MAX_DEMAND = 10.0
_NODE = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_FILL = re.compile(r"(?P<mix>.+)_fill(?P<demand>[0-9]{1,2}(?:\.[0-9]{1,3})?)_seed(?P<seed>[0-9]{1,9})")
_MODEL = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_SUFFIXES = (".csv.gz", ".csv")


def load(name: str, traces: Path | None) -> Workload:
    """The pods of one mix on the nodes that have GPUs.

    :raises TraceError: there is no such file, it is wrong, or the mix has no times to replay
    """
    folder = trace_folder(traces) / "openb"
    wanted = _FILL.fullmatch(name)
    mix = wanted["mix"] if wanted else name
    workers = tuple(_workers(find_file(folder, "openb_node_list_gpu_node", _SUFFIXES)))
    models = frozenset(device.model for worker in workers for device in worker.devices)
    path = find_file(folder, f"openb_pod_list_{mix}", _SUFFIXES)
    jobs = sorted(_pods(_rows(path, mix, is_replay=wanted is None), models), key=lambda job: job.arrival_s)
    workload = Workload(name=f"openb/{name}", jobs=tuple(jobs), workers=workers)
    return fill(workload, float(wanted["demand"]), int(wanted["seed"])) if wanted else workload


def _workers(path: Path) -> Iterator[Worker]:
    for row in unique(csv_rows(path, _NODE), "sn"):
        gpus = row.integer("gpu", 0, MAX_DEVICES - 1)
        accelerators = {f"nvidia/{_model(row, 'model', row.text('model'))}": gpus} if gpus else {}
        cores = row.integer("cpu_milli", CORE_MILLI, MAX_COUNT * CORE_MILLI) // CORE_MILLI
        memory_bytes = row.integer("memory_mib", 1, 2**27) * 2**20
        yield simulated_worker(row.text("sn"), accelerators, cores=cores, host_memory_bytes=memory_bytes)


def _rows(path: Path, mix: str, *, is_replay: bool) -> Iterator[Row]:
    try:
        return csv_rows(path, (*_POD, *_TIMES) if is_replay else _POD)
    except TraceError as error:
        if error.field not in _TIMES:
            raise
        raise TraceError(
            f"the trace openb/{mix}, replayed",
            found=f"{path.name} without the column {error.field}",
            remedy=f"Use openb/{mix}_fill1.3_seed42, which needs no times",
            line=1,
            field=error.field,
        ) from error


def _pods(rows: Iterator[Row], node_models: frozenset[str]) -> Iterator[Job]:
    request = cache(_request)
    for row in unique(rows, "name"):
        gpus, share_milli = row.integer("num_gpu", 0, MAX_COUNT), row.integer("gpu_milli", 0, 1000)
        if (gpus == 0) != (share_milli == 0) or (gpus > 1 and share_milli != 1000):
            raise row.wrong(
                "gpu_milli", f"{share_milli} thousandths of {gpus} GPUs", "Give a part of one GPU, or whole ones"
            )
        cores = math.ceil(row.integer("cpu_milli", 0, MAX_COUNT * CORE_MILLI) / CORE_MILLI)
        if not gpus and not cores:
            raise row.wrong("cpu_milli", "a pod that asks for neither GPU nor CPU")
        models = _allowed(row, node_models) if gpus else ()
        arrival_s, work = _times(row)
        yield Job(
            id=row.text("name"),
            arrival_s=arrival_s,
            request=request(gpus, share_milli, cores, row.integer("memory_mib", 0, 2**27), models),
            work=work,
            task=f"{gpus}x{share_milli}",
            group=row.text("qos") if row.fields.get("qos") else "openb",
        )


def _times(row: Row) -> tuple[float, float]:
    """When the pod arrived, and how long it ran; if it never ran, how long it existed."""
    if "creation_time" not in row.fields:
        return 0.0, 1.0
    created, deleted = row.number("creation_time"), row.number("deletion_time")
    started = row.number("scheduled_time") if row.fields["scheduled_time"] else created
    if not created <= started <= deleted:
        raise row.wrong("deletion_time", f"a pod created at {created:g}, started at {started:g}, gone at {deleted:g}")
    return created, max(1.0, deleted - started)


def _allowed(row: Row, node_models: frozenset[str]) -> tuple[str, ...]:
    """The models that the pod accepts and some node has; empty for any model."""
    spec = row.fields.get("gpu_spec", "")
    models = sorted({_model(row, "gpu_spec", word) for word in spec.split("|")}) if spec else []
    if models and node_models.isdisjoint(models):
        raise row.wrong("gpu_spec", "models that no node has", f"Name some of {', '.join(sorted(node_models))}")
    return tuple(model for model in models if model in node_models)


def _model(row: Row, field: str, word: str) -> str:
    model = word.strip().lower()
    if _MODEL.fullmatch(model) is None:
        raise row.wrong(field, f"no model in {shorten(word)}", 'Write models as "V100M16|V100M32"')
    return model


def _request(gpus: int, share_milli: int, cores: int, memory_mib: int, models: tuple[str, ...]) -> DeviceRequest:
    host_memory = memory_mib * 2**20 or None
    if not gpus:
        return DeviceRequest.parse(f"cpu:{cores}", quota={"host_memory": host_memory})
    amount: dict[str, object] = {"count": gpus} if share_milli == 1000 else {"share": share_milli / 1000}
    quota = amount | {"cpus": cores or None, "host_memory": host_memory}
    if not models:
        return DeviceRequest.parse("gpu", quota=quota)
    return DeviceRequest.parse({f"nvidia/{model}" for model in models}, quota=quota)


def fill(workload: Workload, demand: float, seed: int) -> Workload:
    """The jobs in random order, one a second, without an end, so that they request `demand` of the accelerators.

    As ``TunePodsByNodeTotalResource`` of the publisher's simulator, it adds copies of random pods, or removes random
    pods, until all together request just below `demand` × the accelerators; then it shuffles them. A job that can't
    be placed at once is lost. The random numbers are Python's, not Go's, so a seed here is not a published one.
    """
    offered = sum(device.kind != "cpu" for worker in workload.workers for device in worker.devices)
    limit, rng = demand * offered, random.Random(seed)  # noqa: S311  a simulation, not a secret
    if not 0 < demand <= _MAX_DEMAND or not any(map(_accelerators, workload.jobs)):
        raise TraceError(
            f"{workload.name}, filled to {demand:g} of its accelerators",
            found=f"a demand outside of 0 to {_MAX_DEMAND:g}, or no job that asks for an accelerator",
            remedy="Write it as openb/default_fill1.3_seed42",
        )
    jobs = list(workload.jobs)
    requested = sum(map(_accelerators, jobs))
    while requested > limit:
        requested -= _accelerators(jobs.pop(rng.randrange(len(jobs))))
    for number in range(10 * len(workload.jobs)):
        job = workload.jobs[rng.randrange(len(workload.jobs))]
        requested += _accelerators(job)
        if requested > limit:
            break
        jobs.append(replace(job, id=f"{job.id}-copy-{number}"))
    rng.shuffle(jobs)
    for second, job in enumerate(jobs):
        jobs[second] = replace(job, arrival_s=float(second), work=FOREVER_S, patience_s=0.0)
    return replace(workload, jobs=tuple(jobs))


def _accelerators(job: Job) -> float:
    return job.request.alternatives[0].accelerators
