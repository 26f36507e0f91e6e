"""Why a decision came out as it did: typed, and in words for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.plan import Account, AlternativeAccount, CandidateAccount, Reason
from hetero_airflow.model.request import Alternative

MAX_CANDIDATES = 3
MAX_FILTERED = 8


@dataclass(frozen=True, slots=True)
class NearestWorker:
    """What comes closest to a request: which alternative, on which worker, what is in the way, what is offered."""

    alternative: int
    worker_id: str
    reason: Reason
    offers: tuple[tuple[int, str], ...]
    """(number, device) of the worker's accelerators, or of its cores where it has none."""

    def __str__(self) -> str:
        offers = " + ".join(f"{number} × {device}" for number, device in self.offers) or "nothing"
        return f"worker {self.worker_id} has {offers} ({self.reason})"


def alternative_account(
    fleet: WorkerIndex, alternative: Alternative, keep: ReservedCapacity | None = None
) -> AlternativeAccount:
    """What became of an alternative as things stand; equal reasons are counted, one a code stands for the others."""
    by_code: dict[str, list[tuple[int, Reason]]] = {}
    for reason, workers in fleet.census(alternative, keep).filtered().items():
        by_code.setdefault(reason.code, []).append((workers, reason))
    filtered = [
        (sum(workers for workers, _ in group), min(group, key=lambda pair: (-pair[0], str(pair[1])))[1])
        for group in by_code.values()
    ]
    filtered.sort(key=lambda pair: (-pair[0], str(pair[1])))
    best = fleet.ranking(alternative, keep).best(MAX_CANDIDATES)
    candidates = tuple(candidate_account(fleet, worker, fit) for worker, fit in best)
    return AlternativeAccount(str(alternative), len(fleet.entries), tuple(filtered[:MAX_FILTERED]), candidates)


def candidate_account(fleet: WorkerIndex, worker: int, fit: Fit) -> CandidateAccount:
    """A possible placement by the ids of its worker and devices."""
    entry = fleet.entries[worker]
    device_ids = tuple([entry.device_ids[position] for position in fit.chosen])
    return CandidateAccount(entry.worker.id, device_ids, round(fit.score, 6), fit.terms)


def nearest_worker(
    fleet: WorkerIndex, alternatives: Sequence[Alternative], keep: ReservedCapacity | None = None
) -> NearestWorker | None:
    """The worker and alternative that come closest to a fit; the earlier alternative and lower worker id on ties."""
    best: NearestWorker | None = None
    best_closeness: tuple[bool, int, int] | None = None
    for number, alternative in enumerate(alternatives):
        found = fleet.census(alternative, keep).nearest()
        if found is not None and (best_closeness is None or found[1].closeness > best_closeness):
            worker, miss = found
            best = NearestWorker(number, fleet.entries[worker].worker.id, miss.reason, _offers(fleet, worker))
            best_closeness = miss.closeness
    return best


def _offers(fleet: WorkerIndex, worker: int) -> tuple[tuple[int, str], ...]:
    shape = fleet.entries[worker].shape
    counted: dict[str, int] = {}
    for device in shape.devices:
        if device.kind != "cpu":
            counted[str(device)] = counted.get(str(device), 0) + 1
    if not counted and shape.cpu_device is not None:
        return ((len(shape.cpu_device.cores), "cpu core"),)
    return tuple((number, device) for device, number in counted.items())


def account_text(account: Account) -> str:
    """An account as people read it.

    >>> from hetero_airflow.model.plan import ReasonCode
    >>> reason = Reason(ReasonCode.MODEL, "nvidia/h100", "nvidia/a100-sxm4-40gb")
    >>> best = CandidateAccount("b", ("GPU-0",), 21.5, {"real": 20.0, "memory": 1.5})
    >>> second = CandidateAccount("b", ("GPU-1",), 21.25, {"real": 20.0, "memory": 1.25})
    >>> alternative = AlternativeAccount("1 × gpu", 3, ((2, reason),), (best,))
    >>> print(account_text(Account("fifo", "placed on b", (alternative,), best)))
    fifo: placed on b
      1 × gpu: 3 workers looked at
        2 ruled out by model: asked nvidia/h100, found nvidia/a100-sxm4-40gb
        possible: b (GPU-0), score 21.5 = real 20 + memory 1.5
    >>> print(account_text(Account("fifo", "placed on b", (alternative,), second)))
    fifo: placed on b
      1 × gpu: 3 workers looked at
        2 ruled out by model: asked nvidia/h100, found nvidia/a100-sxm4-40gb
        possible: b (GPU-0), score 21.5 = real 20 + memory 1.5
      taken, after equal requests: b (GPU-1), score 21.25 = real 20 + memory 1.25
    """
    lines = [f"{account.policy}: {account.summary}"]
    for alternative in account.alternatives:
        lines.append(f"  {alternative.asked}: {_plural(alternative.evaluated, 'worker')} looked at")
        lines += [f"    {workers} ruled out by {reason}" for workers, reason in alternative.filtered]
        lines += [f"    possible: {_candidate_text(candidate)}" for candidate in alternative.candidates]
    if account.chosen and not any(account.chosen in alternative.candidates for alternative in account.alternatives):
        lines.append(f"  taken, after equal requests: {_candidate_text(account.chosen)}")
    return "\n".join(lines)


def _candidate_text(candidate: CandidateAccount) -> str:
    terms = " + ".join(f"{name} {value:.4g}" for name, value in candidate.terms.items())
    return f"{candidate.worker_id} ({', '.join(candidate.device_ids)}), score {candidate.score:.4g} = {terms}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
