"""Avoids a worker after a failure that it may have caused, unless no other worker can serve the request.

A request that avoids workers asks for the label ``hetero/failed=!host-a,host-b``. These workers carry ``hetero/failed``
with their own id only while a request names them (`with_avoided_labels`). So equal workers stay one class for the
matcher, and no state has to be cleaned up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hetero_airflow.matching.feasibility import feasibility_of
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.request_fields import MAX_REQUIREMENTS
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.recovery.failure import Failure
from hetero_airflow.recovery.memory_growth import with_fields
from hetero_airflow.recovery.rules import Avoid, Rules

AVOIDED_LABEL = "hetero/failed"
"""Label of a worker that a request avoids; its value is the worker's id."""

MAX_VALUE = 256
"""Characters of a label's value."""


@dataclass(frozen=True, slots=True)
class Avoidance:
    """The alternatives that a request keeps, and the workers that they avoid."""

    alternatives: tuple[Alternative, ...]
    avoided: tuple[str, ...] = ()
    """Worker ids, the last failure's first."""
    not_avoidable: tuple[str, ...] = ()
    """Workers that should be avoided too, but no other worker can replace them."""


def avoid_failed_workers(
    alternatives: tuple[Alternative, ...],
    failures: Sequence[Failure],
    rules: Rules,
    workers: Sequence[Worker],
    shapes: Shapes,
) -> Avoidance:
    """The alternatives, with labels that keep them away from the workers where they failed.

    An alternative that only avoided workers can serve is left out if another alternative can run elsewhere. If none
    can, the oldest failure is ignored first.

    :param failures: those that count, oldest first
    :param workers: all known workers; devices in quarantine are not leasable
    """
    suspects = _suspects(failures, rules, workers)
    for number in range(len(suspects), 0, -1):
        value = f"!{','.join(suspects[:number])}"
        if len(value) > MAX_VALUE:
            continue
        trusted = [w for w in workers if w.id not in suspects[:number] and w.state is WorkerState.ONLINE]
        rest_shapes = unique_shapes(trusted, shapes)
        usable = tuple(
            with_fields(alternative, labels={**alternative.labels, AVOIDED_LABEL: value})
            for alternative in alternatives
            if len(alternative.labels) < MAX_REQUIREMENTS
            and any(feasibility_of(alternative, shape).is_servable for shape in rest_shapes)
        )
        if usable:
            return Avoidance(usable, suspects[:number], suspects[number:])
    return Avoidance(alternatives, (), suspects)


def unique_shapes(workers: Iterable[Worker], shapes: Shapes) -> tuple[Shape, ...]:
    """The shapes of the workers, each once."""
    return tuple({id(shape): shape for worker in workers for shape in [shapes.entry(worker).shape]}.values())


def with_avoided_labels(workers: Iterable[Worker], requests: Iterable[DeviceRequest]) -> tuple[Worker, ...]:
    """The workers; those that one of the requests avoids get the label for it.

    >>> from hetero_airflow.testing import a_worker
    >>> workers = (a_worker("host-a"), a_worker("host-b"))
    >>> request = DeviceRequest.parse("gpu", labels={AVOIDED_LABEL: "!host-a"})
    >>> [worker.labels for worker in with_avoided_labels(workers, [request])]
    [{'hetero/failed': 'host-a'}, {}]
    """
    values = {a.labels.get(AVOIDED_LABEL, "") for request in requests for a in request.alternatives}
    named = {name for value in values if value.startswith("!") for name in value[1:].split(",")}
    return tuple(_with_mark(worker) if worker.id in named else worker for worker in workers)


def _with_mark(worker: Worker) -> Worker:
    return worker.model_copy(update={"labels": {**worker.labels, AVOIDED_LABEL: worker.id}})


def _suspects(failures: Sequence[Failure], rules: Rules, workers: Sequence[Worker]) -> tuple[str, ...]:
    """Ids of the known workers that may have caused a failure, the last failure's first."""
    worker_by_id = {worker.id: worker for worker in workers}
    suspects = {
        failure.worker: None
        for failure in reversed(failures)
        if failure.worker in worker_by_id
        and "," not in failure.worker
        and _is_suspect(failure, rules[failure.failure_class].avoid, worker_by_id[failure.worker])
    }
    return tuple(suspects)


def _is_suspect(failure: Failure, avoid: Avoid | None, worker: Worker) -> bool:
    if avoid is Avoid.DEVICE:
        return any(device.leasable for device in worker.devices if device.id in failure.device_ids)
    return avoid is Avoid.WORKER
