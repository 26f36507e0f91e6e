"""Finds the rank that failed first, and why. The later failures of other ranks are only consequences."""

import signal
from collections.abc import Sequence
from dataclasses import replace

from hetero_airflow.errors import FencedOut, HeteroError
from hetero_airflow.operators.rank_group import RankGroup
from hetero_airflow.recovery.classification import classify
from hetero_airflow.recovery.evidence import Evidence, RaisedException
from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.runtime.rank_process import RankExit

SHOWN_LINES = 20
"""Number of the failed rank's last lines in the error."""

_CONSEQUENCES = frozenset({FailureClass.NETWORK})
"""Failure classes that the end of another rank causes."""

_FENCED_OUT = f"{FencedOut.__module__}.{FencedOut.__qualname__}"


class RanksFailed(HeteroError, RuntimeError):
    """torchrun gave up. `rank` failed first, or torchrun itself if None; `evidence` is what is known about it."""

    def __init__(self, asked: str, *, rank: int | None, evidence: Evidence, tail: str) -> None:
        self.rank = rank
        self.evidence = evidence
        who = "torchrun itself" if rank is None else f"rank {rank}"
        finding = classify(evidence)
        super().__init__(
            asked,
            found=f"that {who} failed: it {finding.failure_class.description} ({finding.evidence})",
            remedy="See the task's log for the output of each rank",
        )
        self.args = (f"{self.args[0]} Its last lines:\n{tail}",)


def failure_of_ranks(
    group: RankGroup, exit_code: int, target: Sequence[str], count: int, oom_kills: int | None
) -> RanksFailed:
    """The error to raise after torchrun has given up.

    :param oom_kills: see `Evidence.oom_kills`
    """
    asked = f"to run {count} processes of {' '.join(target[:2]) if target[0] == '-m' else target[0]}"
    failed = _failed_ranks(group)
    if not failed:
        tail = group.tail(None)
        evidence = Evidence(log=tail, exit_code=exit_code, oom_kills=oom_kills)
        return RanksFailed(asked, rank=None, evidence=evidence, tail=_last_lines(tail))
    rank, evidence = next((failure for failure in failed if not is_consequence(failure[1])), failed[0])
    evidence = replace(evidence, oom_kills=oom_kills)
    return RanksFailed(asked, rank=rank, evidence=evidence, tail=_last_lines(group.tail(rank)))


def evidence_of_end(end: RankExit, log: str = "", exit_code: int | None = None) -> Evidence:
    """The evidence in a rank's own report of its failure."""
    raised = tuple(RaisedException(type=name, text=text) for name, text in end.raised)
    return Evidence(raised=raised, log=log, exit_code=exit_code)


def _failed_ranks(group: RankGroup) -> list[tuple[int, Evidence]]:
    """(rank, evidence) of the last start's failures, in order. Killed ranks come before those that left a report."""
    codes = group.exit_codes()
    reports = {end.rank: end for end in group.ends()}
    killed = [
        (rank, Evidence(log=group.tail(rank), exit_code=code))
        for rank, code in codes.items()
        if rank not in reports and code != -signal.SIGTERM  # torchrun sends it to the ranks that are left
    ]
    reported = [
        (rank, evidence_of_end(end, group.tail(rank), codes.get(rank))) for rank, end in reports.items() if end.raised
    ]
    return killed + reported


def is_consequence(evidence: Evidence) -> bool:
    """Whether the failure is a consequence of another rank's end."""
    return classify(evidence).failure_class in _CONSEQUENCES


def is_fenced_out(evidence: Evidence) -> bool:
    """Whether a newer run of the task has started, so that no further start of this one can succeed."""
    return any(raised.type == _FENCED_OUT for raised in evidence.raised)


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-SHOWN_LINES:])
