"""Tasks that only ask whether a device request could be placed now: held like device tasks, answered without a lease.

The policy itself decides, on the queue as it stands with the one request more, and nothing of that is carried out.
So the answer counts what no look at free devices would: who comes first, shares, reservations, topology. It holds
for the moment; another task may be faster.

While it waits, a probe is QUEUED as any held device task is: it takes no process, no worker and no look by anybody
but the executor, which has all it takes in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict

from hetero_airflow.contract.envelope import ENVELOPE_KEY, pack_request
from hetero_airflow.model.plan import Decision, Place, Plan, Refuse
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.policy import Policy
from hetero_airflow.policies.priority import PriorityPolicy

CHECK_MARK = "is_probe"
"""Key beside the requests in ``executor_config``."""

ANSWER_KEY = "hetero_probe"
"""Key of the answer in the workload's ``context_carrier``."""

RECHECK = timedelta(seconds=30)
"""A decision may change with time alone: it is made again at the latest after this."""


class PlacementAnswer(BaseModel):
    """What the executor tells a probe when it lets it go."""

    model_config = ConfigDict(frozen=True)

    worker_id: str = ""
    device_ids: tuple[str, ...] = ()
    problem: str = ""
    """Why there is no placement; empty if there is one."""
    is_final: bool = False
    """No known worker could ever satisfy the request."""


def pack_placement_check(instances: Iterable[Mapping[str, Any]], stride: int = 1) -> dict[str, Any]:
    """As `pack_request`, for a task that only asks.

    :raises RequestError: arguments without templates that make no request
    """
    return {**pack_request(instances, stride), CHECK_MARK: True}


def is_placement_check(executor_config: object) -> bool:
    """Whether a device task only asks."""
    held = executor_config.get(ENVELOPE_KEY) if isinstance(executor_config, Mapping) else None
    return isinstance(held, Mapping) and held.get(CHECK_MARK) is True


def add_answer(context_carrier: Mapping[str, Any] | None, answer: PlacementAnswer) -> dict[str, Any]:
    """The carrier with the answer in it."""
    return {**(context_carrier or {}), ANSWER_KEY: answer.model_dump_json()}


def read_answer(context_carrier: Mapping[str, Any] | None) -> PlacementAnswer | None:
    """The answer that a workload carries, or None if our executor did not hold it."""
    text = (context_carrier or {}).get(ANSWER_KEY)
    return PlacementAnswer.model_validate_json(text) if text else None


def answer_of(decision: Place | Refuse) -> PlacementAnswer:
    """What a probe is told of the decision that ends its wait."""
    if isinstance(decision, Place):
        return PlacementAnswer(
            worker_id=decision.worker_id, device_ids=tuple(claim.device_id for claim in decision.claims)
        )
    text = f"No known worker can ever run this: {decision.reason}. {decision.nearest}"
    return PlacementAnswer(problem=text, is_final=True)


@dataclass(frozen=True, slots=True)
class _CachedDecision:
    decision: Decision
    sequence: int
    at: datetime


class PlacementChecker:
    """Decides on probes as the cycle would; at most one decision a round, so that they can't slow the scheduler down.

    Probes that ask for the same, of the same weight and DAG, are told the same.

    :param reaches: whether the engine can run anything on a worker
    """

    def __init__(self, policy: Policy, reaches: Callable[[str], bool]) -> None:
        self._policy = policy
        self._reaches = reaches
        self._made: dict[tuple[DeviceRequest, str, int], _CachedDecision] = {}

    def decide(self, probes: Sequence[PendingRequest], snapshot: Snapshot, now: datetime) -> dict[str, Decision]:
        """Probe id → the newest decision on it, as far as one was made."""
        groups: dict[tuple[DeviceRequest, str, int], list[PendingRequest]] = {}
        for probe in sorted(probes, key=lambda one: (one.submitted_at, one.id)):
            groups.setdefault((probe.request, probe.dag_id, probe.weight), []).append(probe)
        self._made = {key: made for key, made in self._made.items() if key in groups}
        stale = [
            key
            for key in groups
            if key not in self._made
            or self._made[key].sequence != snapshot.sequence
            or now - self._made[key].at >= RECHECK
        ]
        if stale:
            never = [key for key in stale if key not in self._made]
            key = never[0] if never else min(stale, key=lambda key: self._made[key].at)
            self._made[key] = _CachedDecision(self._decision(groups[key][0], snapshot, now), snapshot.sequence, now)
        return {
            probe.id: self._made[key].decision._replace(request_id=probe.id)
            for key, alike in groups.items()
            if key in self._made
            for probe in alike
        }

    def _decision(self, probe: PendingRequest, snapshot: Snapshot, now: datetime) -> Decision:
        asked = replace(
            snapshot,
            workers=tuple(worker for worker in snapshot.workers if self._reaches(worker.id)),
            pending=tuple(sorted((*snapshot.pending, probe), key=lambda one: (one.submitted_at, one.id))),
            can_preempt=False,
        )
        try:
            plan = self._policy.decide(asked, now)
            return _decision_on(plan, probe.id)
        except Exception:  # noqa: BLE001  a policy from another package may raise anything; the cycle tells of it
            return _decision_on(PriorityPolicy().decide(asked, now), probe.id)


def _decision_on(plan: Plan, request_id: str) -> Decision:
    return next(decision for decision in plan.decisions if decision.request_id == request_id)
