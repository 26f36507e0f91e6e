"""Accounts of decisions: typed, and as text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.scoring import own_terms
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.plan import Account, AlternativeAccount, CandidateAccount, Reason
from hetero_airflow.model.request import Alternative

MAX_CANDIDATES = 3
MAX_FILTERED = 8


@dataclass(frozen=True, slots=True)
class NearestWorker:
    """The closest worker to a fit: the alternative, the worker, why it does not fit, and what the worker offers."""

    alternative: int
    worker_id: str
    reason: Reason
    offers: tuple[tuple[int, str], ...]
    """(number, device) of the worker's accelerators, or of its cores if it has none."""

    def __str__(self) -> str:
        offers = " + ".join(f"{number} × {device}" for number, device in self.offers) or "nothing"
        return f"worker {self.worker_id} has {offers} ({self.reason})"


def alternative_account(
    index: WorkerIndex, alternative: Alternative, reserved: ReservedCapacity | None = None
) -> AlternativeAccount:
    """The account of an alternative in the current state. Reasons are counted by code, each with one example."""
    by_code: dict[str, list[tuple[int, Reason]]] = {}
    for reason, workers in index.rejection_counts(alternative, reserved).filtered().items():
        by_code.setdefault(reason.code, []).append((workers, reason))
    filtered = [
        (sum(workers for workers, _ in group), min(group, key=lambda pair: (-pair[0], str(pair[1])))[1])
        for group in by_code.values()
    ]
    filtered.sort(key=lambda pair: (-pair[0], str(pair[1])))
    best = index.ranking(alternative, reserved).best(MAX_CANDIDATES)
    candidates = tuple(candidate_account(index, worker, fit) for worker, fit in best)
    return AlternativeAccount(str(alternative), len(index.entries), tuple(filtered[:MAX_FILTERED]), candidates)


def candidate_account(index: WorkerIndex, worker: int, fit: Fit) -> CandidateAccount:
    """A possible placement, with the ids of its worker and devices."""
    entry = index.entries[worker]
    device_ids = tuple([entry.device_ids[position] for position in fit.chosen])
    return CandidateAccount(entry.worker.id, device_ids, round(fit.score, 6), fit.terms)


def nearest_worker(
    index: WorkerIndex, alternatives: Sequence[Alternative], reserved: ReservedCapacity | None = None
) -> NearestWorker | None:
    """The worker and alternative closest to a fit; ties go to the earlier alternative, then to the lower worker id."""
    best: NearestWorker | None = None
    best_closeness: tuple[bool, int, int] | None = None
    for number, alternative in enumerate(alternatives):
        nearest = index.rejection_counts(alternative, reserved).nearest()
        if nearest is not None and (best_closeness is None or nearest[1].closeness > best_closeness):
            worker, rejection = nearest
            best = NearestWorker(number, index.entries[worker].worker.id, rejection.reason, _offers(index, worker))
            best_closeness = rejection.closeness
    return best


def _offers(index: WorkerIndex, worker: int) -> tuple[tuple[int, str], ...]:
    shape = index.entries[worker].shape
    counted = Counter(str(device) for device in shape.devices if device.kind != "cpu")
    if not counted and shape.cpu_device is not None:
        return ((len(shape.cpu_device.cores), "cpu core"),)
    return tuple((number, device) for device, number in counted.items())


def account_text(account: Account) -> str:
    """An account as text.

    >>> from hetero_airflow.model.plan import ReasonCode
    >>> reason = Reason(ReasonCode.MODEL, "nvidia/h100", "nvidia/a100-sxm4-40gb")
    >>> best = CandidateAccount("b", ("GPU-0",), 21.5, {"real": 20.0, "memory": 1.5})
    >>> second = CandidateAccount("b", ("GPU-1",), 21.25, {"real": 20.0, "memory": 1.25})
    >>> alternative = AlternativeAccount("1 × gpu", 3, ((2, reason),), (best,))
    >>> print(account_text(Account("fifo", "placed on b", (alternative,), best)))
    fifo: placed on b
      1 × gpu: 3 workers evaluated
        2 ruled out by model: asked nvidia/h100, found nvidia/a100-sxm4-40gb
        possible: b (GPU-0), score 21.5 = real 20 + memory 1.5
    >>> print(account_text(Account("fifo", "placed on b", (alternative,), second)))
    fifo: placed on b
      1 × gpu: 3 workers evaluated
        2 ruled out by model: asked nvidia/h100, found nvidia/a100-sxm4-40gb
        possible: b (GPU-0), score 21.5 = real 20 + memory 1.5
      chosen, after equal requests: b (GPU-1), score 21.25 = real 20 + memory 1.25
    >>> equal = CandidateAccount("c", ("GPU-0",), 21.5, {"real": 20.0, "memory": 1.5})
    >>> print(account_text(Account("fifo", "placed on c", (alternative,), equal)).splitlines()[-1])
      chosen, as good: c (GPU-0), score 21.5 = real 20 + memory 1.5
    """
    lines = [f"{account.policy}: {account.summary}"]
    for alternative in account.alternatives:
        lines.append(f"  {alternative.asked}: {_plural(alternative.evaluated, 'worker')} evaluated")
        lines += [f"    {workers} ruled out by {reason}" for workers, reason in alternative.filtered]
        lines += [f"    possible: {_candidate_text(candidate)}" for candidate in alternative.candidates]
    candidates = [candidate for alternative in account.alternatives for candidate in alternative.candidates]
    if account.chosen and account.chosen not in candidates:
        is_as_good = any(own_terms(account.chosen.terms) == own_terms(candidate.terms) for candidate in candidates)
        lines.append(
            f"  chosen, {'as good' if is_as_good else 'after equal requests'}: {_candidate_text(account.chosen)}"
        )
    return "\n".join(lines)


def _candidate_text(candidate: CandidateAccount) -> str:
    terms = " + ".join(f"{name} {value:.4g}" for name, value in candidate.terms.items())
    return f"{candidate.worker_id} ({', '.join(candidate.device_ids)}), score {candidate.score:.4g} = {terms}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
