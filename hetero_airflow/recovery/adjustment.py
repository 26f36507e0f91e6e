"""Requests after failures: more memory, another worker, or the next alternative. Pure."""

from collections.abc import Callable, Sequence

from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.recovery.avoidance import avoid_failed_workers, unique_shapes
from hetero_airflow.recovery.failure import Failure, FailureClass, failures_of_epoch
from hetero_airflow.recovery.memory_growth import MemoryGrowth, with_device_memory, with_host_memory
from hetero_airflow.recovery.rules import Rule, Rules

_Grow = Callable[[Alternative, Sequence[int | None], Rule, Sequence[Shape]], MemoryGrowth]


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
    return _with_alternatives(request, alternatives), messages


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
    return _with_alternatives(request, (*after, *before)), [message]


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


def _with_alternatives(request: DeviceRequest, alternatives: tuple[Alternative, ...]) -> DeviceRequest:
    fields = {name: getattr(request, name) for name in DeviceRequest.model_fields}
    return DeviceRequest(**(fields | {"alternatives": alternatives}))
