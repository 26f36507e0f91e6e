"""Another worker after a failure that may be the worker's: a wish by a negative label, dropped where nobody else could.

A request that avoids workers asks for ``hetero/failed=!host-a,host-b``. Those workers carry ``hetero/failed`` with
their own id only while a request names them (`marked`): so equal workers stay one class for the matcher, and nothing
needs to be forgotten afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hetero_airflow.matching.feasibility import feasibility_of
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.request_fields import MAX_REQUIREMENTS
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.recovery.memory_growth import with_fields
from hetero_airflow.recovery.rules import Avoid, Rules

AVOIDED_LABEL = "hetero/failed"
"""Label of a worker that some request avoids; its value is the worker's id."""

MAX_VALUE = 256
"""Characters of a label's value."""


@dataclass(frozen=True, slots=True)
class Avoidance:
    """The alternatives that a request keeps, and the workers that they avoid."""

    alternatives: tuple[Alternative, ...]
    avoided: tuple[str, ...] = ()
    """Worker ids, that of the last failure first."""
    wanted: tuple[str, ...] = ()
    """Those that should have been avoided too, but that nobody else could take the place of."""


def avoid_failed_workers(
    alternatives: tuple[Alternative, ...],
    failures: Sequence[Failure],
    rules: Rules,
    workers: Sequence[Worker],
    shapes: Shapes,
) -> Avoidance:
    """The alternatives, with the wish not to run where they failed.

    An alternative that only an avoided worker could serve is left out while another one could run elsewhere. If
    none could, the failure that is longest ago is forgiven first.

    :param failures: those that count, oldest first
    :param workers: all that are known, devices in quarantine not leasable
    """
    wanted = _wanted(failures, rules, workers)
    for number in range(len(wanted), 0, -1):
        value = f"!{','.join(wanted[:number])}"
        if len(value) > MAX_VALUE:
            continue
        others = [one for one in workers if one.id not in wanted[:number] and one.state is WorkerState.ONLINE]
        kinds = {id(shape): shape for other in others for shape in [shapes.entry(other).shape]}.values()
        kept = tuple(
            with_fields(one, labels={**one.labels, AVOIDED_LABEL: value})
            for one in alternatives
            if len(one.labels) < MAX_REQUIREMENTS and any(feasibility_of(one, kind).is_servable for kind in kinds)
        )
        if kept:
            return Avoidance(kept, wanted[:number], wanted[number:])
    return Avoidance(alternatives, (), wanted)


def with_avoided_labels(workers: Iterable[Worker], requests: Iterable[DeviceRequest]) -> tuple[Worker, ...]:
    """The workers, those that one of the requests avoids with the label that says so; the others as they are.

    >>> from hetero_airflow.testing import a_worker
    >>> workers = (a_worker("host-a"), a_worker("host-b"))
    >>> request = DeviceRequest.parse("gpu", labels={AVOIDED_LABEL: "!host-a"})
    >>> [worker.labels for worker in with_avoided_labels(workers, [request])]
    [{'hetero/failed': 'host-a'}, {}]
    """
    values = {one.labels.get(AVOIDED_LABEL, "") for request in requests for one in request.alternatives}
    named = {name for value in values if value.startswith("!") for name in value[1:].split(",")}
    return tuple(_with_mark(worker) if worker.id in named else worker for worker in workers)


def _with_mark(worker: Worker) -> Worker:
    return worker.model_copy(update={"labels": {**worker.labels, AVOIDED_LABEL: worker.id}})


def _wanted(failures: Sequence[Failure], rules: Rules, workers: Sequence[Worker]) -> tuple[str, ...]:
    """Ids of the workers to avoid, the last first; those that are not there any more are no danger."""
    there = {worker.id: worker for worker in workers}
    wanted = {
        failure.worker: None
        for failure in reversed(failures)
        if failure.worker in there
        and "," not in failure.worker
        and _is_dangerous(failure, rules[failure.failure_class].avoid, there[failure.worker])
    }
    return tuple(wanted)


def _is_dangerous(failure: Failure, avoid: Avoid | None, worker: Worker) -> bool:
    if avoid is Avoid.DEVICE:
        return any(device.leasable for device in worker.devices if device.id in failure.device_ids)
    return avoid is Avoid.WORKER
