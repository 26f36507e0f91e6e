"""What a request asks for, after what happened to it: more memory, another worker, its next alternative. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.recovery.avoidance import avoid_failed_workers
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
    """What the request asks for now, and a sentence for each change, for the task's log.

    It is made anew from what the user wrote each time; nothing adds up by being asked again.

    :param request: as the user wrote it
    :param failures: what the state store holds, oldest first
    :param workers: all that are known, devices in quarantine not leasable
    :param epoch: of the present; failures before the last clear don't count
    :param shapes: what a caller that asks often keeps: it makes the same answer cheap for the same workers

    >>> from hetero_airflow.recovery.rules import DEFAULTS
    >>> from hetero_airflow.testing import EPOCH, a_device, a_worker
    >>> small, large = a_device("GPU-1", memory="24GiB"), a_device("GPU-2", memory="80GiB")
    >>> oom = Failure(failure_class="device_memory", evidence="CUDA out of memory", worker="a", device_ids=("GPU-1",),
    ...               at=EPOCH, epoch=0, memory_bytes=small.memory_bytes)
    >>> workers = [a_worker("a", (small,)), a_worker("b", (large,))]
    >>> now, words = adjusted_request(DeviceRequest.parse("gpu"), [oom], DEFAULTS, workers, epoch=0)
    >>> print(now, *words, sep=chr(10))
    1 × gpu (memory=48GiB..)
    Asks for 1 × gpu (memory=48GiB..) instead of 1 × gpu, after it ran out of device memory on GPU-1 of a.
    """
    recent = failures_of_epoch(failures, epoch)
    if not recent:
        return request, []
    shapes = shapes or Shapes()
    kinds = tuple({id(shape): shape for worker in workers for shape in [shapes.entry(worker).shape]}.values())
    words: list[str] = []
    alternatives = request.alternatives
    for failure_class, grow in _GROWTHS.items():
        those = [one for one in recent if one.failure_class is failure_class]
        if those and rules[failure_class].memory is not None:
            alternatives = _with_more_memory(alternatives, those, rules[failure_class], kinds, grow, words)
    alternatives = _without_failed_workers(alternatives, recent, rules, workers, shapes, words)
    return _with(request, alternatives), words


def request_after_waiting(request: DeviceRequest, waited_s: float, rules: Rules) -> tuple[DeviceRequest, list[str]]:
    """The request after it has waited: its next alternative is tried first, one more each ``waiting.after``.

    Nothing is lost by it: what was first is tried last. A request that leaves the choice to the policy, or has no
    alternative, stays as it is.

    >>> from hetero_airflow.recovery.rules import DEFAULTS
    >>> request, words = request_after_waiting(DeviceRequest.parse(["gpu:4", "gpu:2"]), 1800, DEFAULTS)
    >>> str(request), words
    ('2 × gpu or 4 × gpu', ['Asks for 2 × gpu first, after it has waited for 4 × gpu for 30 min.'])
    """
    if rules.waiting_s is None or not request.is_ordered:
        return request, []
    passed = min(int(waited_s // rules.waiting_s), len(request.alternatives) - 1)
    if passed <= 0:
        return request, []
    before, after = request.alternatives[:passed], request.alternatives[passed:]
    words = f"Asks for {after[0]} first, after it has waited for {before[-1]} for {rules.waiting_s / 60:g} min."
    return _with(request, (*after, *before)), [words]


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
    words: list[str],
) -> tuple[Alternative, ...]:
    """All alternatives with more memory; those that can't have more are left out while another can."""
    is_device = failures[0].failure_class is FailureClass.DEVICE_MEMORY
    failed = [one.memory_bytes if is_device else one.host_memory_bytes for one in failures]
    growths = [grow(one, failed, rule, shapes) for one in alternatives]
    kept = [growth for growth in growths if growth.is_larger] or growths
    after = tuple(growth.alternative for growth in kept)
    why = f"after it {failures[-1].failure_class.words}{_place(failures[-1])}"
    if not kept[0].is_larger:
        words.append(f"Asks for {_text(after)} again {why}: no known worker can give it more.")
    elif after != alternatives:
        words.append(f"Asks for {_text(after)} instead of {_text(alternatives)}, {why}.")
    return after


def _without_failed_workers(
    alternatives: tuple[Alternative, ...],
    failures: Sequence[Failure],
    rules: Rules,
    workers: Sequence[Worker],
    shapes: Shapes,
    words: list[str],
) -> tuple[Alternative, ...]:
    outcome = avoid_failed_workers(alternatives, failures, rules, workers, shapes)
    last = {one.worker: one for one in failures if rules[one.failure_class].avoid is not None}
    for worker in outcome.avoided:
        words.append(f"Asks for another worker than {worker}, where it {last[worker].failure_class.words}.")
    for worker in outcome.wanted:
        why = f"though it {last[worker].failure_class.words} there: no other known worker could serve it"
        words.append(f"May run on {worker} again, {why}.")
    return outcome.alternatives


def _place(failure: Failure) -> str:
    devices = f" on {', '.join(failure.device_ids)}" if failure.device_ids else ""
    return devices + (f" of {failure.worker}" if devices and failure.worker else "")


def _text(alternatives: Sequence[Alternative]) -> str:
    return " or ".join(map(str, alternatives))


def _with(request: DeviceRequest, alternatives: tuple[Alternative, ...]) -> DeviceRequest:
    kept = {name: getattr(request, name) for name in DeviceRequest.model_fields}
    return DeviceRequest(**(kept | {"alternatives": alternatives}))
