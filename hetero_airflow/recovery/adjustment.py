"""Requests after failures: more memory, another worker, or the next alternative. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hetero_airflow.matching.feasibility import Feasibility, device_need, feasibility_of
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.request_fields import MAX_REQUIREMENTS
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.recovery.failure import Failure, FailureClass, failures_of_epoch
from hetero_airflow.recovery.rules import Avoid, Rule, Rules
from hetero_airflow.units import ByteRange

NEARLY_ENOUGH = 7 / 8
"""This part of the wanted memory is enough: makers' sizes are round numbers less what the driver keeps, so an L40S of
45 GiB is the next size after an RTX 4090 of 24."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """An alternative with the memory to ask for now; `is_larger` if no failure had as much."""

    alternative: Alternative
    is_larger: bool


def with_device_memory(
    alternative: Alternative, failed: Sequence[int | None], rule: Rule, shapes: Iterable[Shape]
) -> MemoryGrowth:
    """The alternative after it, or another one, ran out of device memory.

    A share that can't grow on any device becomes a whole device. A CPU has no device memory.

    :param failed: bytes of each device at each failure; None (not known) counts as the requested memory
    :param shapes: of all known workers; if there are none, nothing changes
    """
    requested = alternative.memory
    wanted, worst = _wanted_bytes(requested.minimum if requested else None, failed, rule.memory)
    if alternative.kind == "cpu" or wanted is None:
        return MemoryGrowth(alternative, is_larger=False)
    shapes = tuple(shapes)
    limit = min(filter(None, (requested.maximum if requested else None, rule.memory_limit)), default=None)
    same = MemoryGrowth(alternative, is_larger=False)
    for candidate in _with_whole_devices(alternative):
        sizes = sorted(size for size in _sizes(candidate, shapes) if limit is None or size <= limit)
        larger = [size for size in sizes if size > worst]
        if larger:
            nearest = next((size for size in larger if size >= NEARLY_ENOUGH * wanted), larger[-1])
            return MemoryGrowth(_with_minimum(candidate, min(nearest, wanted)), is_larger=True)
        if sizes:
            same = MemoryGrowth(_with_minimum(candidate, sizes[-1]), is_larger=False)
    return same


def with_host_memory(
    alternative: Alternative, failed: Sequence[int | None], rule: Rule, shapes: Iterable[Shape]
) -> MemoryGrowth:
    """The alternative after the host ran out of memory; the parameters are those of `with_device_memory`."""
    wanted, worst = _wanted_bytes(alternative.host_memory, failed, rule.memory)
    any_size = alternative.with_fields(host_memory=None)
    sizes = [
        shape.cpu_device.memory_bytes or 0
        for shape, verdict in _possible(any_size, shapes)
        if shape.cpu_device is not None and verdict.suitable
    ]
    if wanted is None or not sizes:
        return MemoryGrowth(alternative, is_larger=False)
    most = min(wanted, max(sizes), rule.memory_limit or wanted)
    if most <= (alternative.host_memory or 0):
        return MemoryGrowth(alternative, is_larger=False)
    return MemoryGrowth(alternative.with_fields(host_memory=most), is_larger=most > worst)


def _wanted_bytes(begin: int | None, failed: Sequence[int | None], factor: float | None) -> tuple[int | None, int]:
    """How much to ask for, and the largest amount that was too little."""
    wanted, worst = begin, 0
    for failure in failed:
        amount = failure or wanted
        if amount is not None and factor is not None:
            worst = max(worst, amount)
            wanted = max(wanted or 0, int(amount * factor))
    return (wanted if worst else None), worst


def _with_whole_devices(alternative: Alternative) -> Iterator[Alternative]:
    yield alternative
    if alternative.share is not None:
        yield alternative.with_fields(share=None)


def _possible(alternative: Alternative, shapes: Iterable[Shape]) -> Iterator[tuple[Shape, Feasibility]]:
    for shape in shapes:
        verdict = feasibility_of(alternative, shape)
        if verdict.is_possible:
            yield shape, verdict


def _sizes(alternative: Alternative, shapes: Iterable[Shape]) -> set[int]:
    """The known sizes for which a worker has enough devices, or shares, that are at least as large."""
    any_size = alternative.with_fields(memory=None)
    sizes: set[int] = set()
    for shape, verdict in _possible(any_size, shapes):
        on_worker = (device_need(any_size, shape.devices[at]).memory_bytes for at in verdict.suitable)
        sizes.update(sorted(on_worker, reverse=True)[any_size.count - 1 :])
    return sizes - {0}


def _with_minimum(alternative: Alternative, size: int) -> Alternative:
    requested = alternative.memory or ByteRange(None, None)
    return alternative.with_fields(memory=ByteRange(max(size, requested.minimum or 0), requested.maximum))


_Grow = Callable[[Alternative, Sequence[int | None], Rule, Sequence[Shape]], MemoryGrowth]


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
            alternative.with_fields(labels={**alternative.labels, AVOIDED_LABEL: value})
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


def adjusted_request(
    request: DeviceRequest,
    failures: Sequence[Failure],
    rules: Rules,
    workers: Sequence[Worker],
    *,
    epoch: int,
    shapes: Shapes | None = None,
) -> tuple[DeviceRequest, list[str]]:
    """The request after its failures, and a sentence for each change, for the task's log.

    Each call starts from what the user wrote, so a repeated call changes nothing more.

    :param request: as the user wrote it
    :param failures: from the state store, oldest first
    :param workers: all known workers; devices in quarantine are not leasable
    :param epoch: the current one; failures before the last clear don't count
    :param shapes: a cache that a frequent caller keeps, so that equal workers are evaluated once

    >>> from hetero_airflow.recovery.rules import DEFAULTS
    >>> from hetero_airflow.testing import EPOCH, a_device, a_worker
    >>> small, large = a_device("GPU-1", memory="24GiB"), a_device("GPU-2", memory="80GiB")
    >>> oom = Failure(failure_class="device_memory", evidence="CUDA out of memory", worker="a", device_ids=("GPU-1",),
    ...               at=EPOCH, epoch=0, memory_bytes=small.memory_bytes)
    >>> workers = [a_worker("a", (small,)), a_worker("b", (large,))]
    >>> adjusted, messages = adjusted_request(DeviceRequest.parse("gpu"), [oom], DEFAULTS, workers, epoch=0)
    >>> print(adjusted, *messages, sep=chr(10))
    1 × gpu (memory=48GiB..)
    Asks for 1 × gpu (memory=48GiB..) instead of 1 × gpu, after it ran out of device memory on GPU-1 of a.
    """
    recent = failures_of_epoch(failures, epoch)
    if not recent:
        return request, []
    shapes = shapes or Shapes()
    worker_shapes = unique_shapes(workers, shapes)
    messages: list[str] = []
    alternatives = request.alternatives
    for failure_class, grow in _GROWTHS.items():
        of_class = [failure for failure in recent if failure.failure_class is failure_class]
        if of_class and rules[failure_class].memory is not None:
            alternatives = _with_more_memory(
                alternatives, of_class, rules[failure_class], worker_shapes, grow, messages
            )
    alternatives = _without_failed_workers(alternatives, recent, rules, workers, shapes, messages)
    return request.with_fields(alternatives=alternatives), messages


def request_after_waiting(request: DeviceRequest, waited_s: float, rules: Rules) -> tuple[DeviceRequest, list[str]]:
    """The request after it has waited: its next alternative comes first, one more after each ``waiting.after``.

    The alternatives before it move to the end. A request without alternatives, or one that leaves the choice to the
    policy, stays the same.

    >>> from hetero_airflow.recovery.rules import DEFAULTS
    >>> request, messages = request_after_waiting(DeviceRequest.parse(["gpu:4", "gpu:2"]), 1800, DEFAULTS)
    >>> str(request), messages
    ('2 × gpu or 4 × gpu', ['Asks for 2 × gpu first, after it has waited for 4 × gpu for 30 min.'])
    """
    if rules.waiting_s is None or not request.is_ordered:
        return request, []
    passed = min(int(waited_s // rules.waiting_s), len(request.alternatives) - 1)
    if passed <= 0:
        return request, []
    before, after = request.alternatives[:passed], request.alternatives[passed:]
    message = f"Asks for {after[0]} first, after it has waited for {before[-1]} for {rules.waiting_s / 60:g} min."
    return request.with_fields(alternatives=(*after, *before)), [message]


_GROWTHS: dict[FailureClass, _Grow] = {
    FailureClass.DEVICE_MEMORY: with_device_memory,
    FailureClass.HOST_MEMORY: with_host_memory,
}


def _with_more_memory(
    alternatives: tuple[Alternative, ...],
    failures: Sequence[Failure],
    rule: Rule,
    shapes: Sequence[Shape],
    grow: _Grow,
    messages: list[str],
) -> tuple[Alternative, ...]:
    """The alternatives with more memory. One that can't have more is left out if another one can."""
    is_device = failures[0].failure_class is FailureClass.DEVICE_MEMORY
    failed = [failure.memory_bytes if is_device else failure.host_memory_bytes for failure in failures]
    growths = [grow(alternative, failed, rule, shapes) for alternative in alternatives]
    preferred = [growth for growth in growths if growth.is_larger] or growths
    after = tuple(growth.alternative for growth in preferred)
    why = f"after it {failures[-1].failure_class.description}{_place(failures[-1])}"
    if not preferred[0].is_larger:
        messages.append(f"Asks for {_text(after)} again {why}: no known worker can give it more.")
    elif after != alternatives:
        messages.append(f"Asks for {_text(after)} instead of {_text(alternatives)}, {why}.")
    return after


def _without_failed_workers(
    alternatives: tuple[Alternative, ...],
    failures: Sequence[Failure],
    rules: Rules,
    workers: Sequence[Worker],
    shapes: Shapes,
    messages: list[str],
) -> tuple[Alternative, ...]:
    outcome = avoid_failed_workers(alternatives, failures, rules, workers, shapes)
    last = {failure.worker: failure for failure in failures if rules[failure.failure_class].avoid is not None}
    for worker in outcome.avoided:
        messages.append(f"Asks for another worker than {worker}, where it {last[worker].failure_class.description}.")
    for worker in outcome.not_avoidable:
        why = f"though it {last[worker].failure_class.description} there: no other known worker can serve it"
        messages.append(f"May run on {worker} again, {why}.")
    return outcome.alternatives


def _place(failure: Failure) -> str:
    devices = f" on {', '.join(failure.device_ids)}" if failure.device_ids else ""
    return devices + (f" of {failure.worker}" if devices and failure.worker else "")


def _text(alternatives: Sequence[Alternative]) -> str:
    return " or ".join(map(str, alternatives))
