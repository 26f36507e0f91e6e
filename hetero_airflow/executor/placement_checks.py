"""Holds tasks that only ask whether a request could be placed now, and lets them go with the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow.executors.workloads import ExecuteTask

from hetero_airflow.contract.envelope import RequestOrTemplate
from hetero_airflow.contract.placement_check import PlacementAnswer, add_answer
from hetero_airflow.engines.engine import DeviceTasks
from hetero_airflow.errors import RequestError
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask, log_wait
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Decision, Place, Plan, Refuse, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.policy import Policy
from hetero_airflow.policies.priority import PriorityPolicy

RECHECK = timedelta(seconds=30)
"""A decision may change with time alone: it is made again at the latest after this."""

RenewToken = Callable[[ExecuteTask, float | None], None]
"""(workload, seconds): gives it a new token that is good for so long at most; None for as long as Airflow's own."""


class PlacementChecks:
    """The probes that wait; none of them is in the store or in anybody's way."""

    def __init__(
        self,
        policy: Policy,
        engine: DeviceTasks,
        tasks: TaskInstances,
        *,
        reaches: Callable[[str], bool],
        estimates: Callable[[], Estimates],
        renew_token: RenewToken,
    ) -> None:
        self.held: dict[Any, PendingTask] = {}
        self._engine = engine
        self._tasks = tasks
        self._probes = PlacementChecker(policy, reaches)
        self._estimates = estimates
        self._renew_token = renew_token

    def hold(self, workload: ExecuteTask, asked: RequestOrTemplate, since: datetime) -> None:
        """Keep a probe until its answer is there. Touches no database: the scheduler is inside a transaction."""
        self.held[workload.key] = PendingTask(workload, asked, since)

    def step(self, snapshot: Callable[[], Snapshot], now: datetime) -> None:
        """Let those go that have an answer, and forget those that Airflow does not want any more."""
        if not self.held:
            return
        old = [held.request_id for held in self.held.values() if now - held.since >= SETTLING_TIME]
        gone = set(old) - self._tasks.queued(old)
        self.held = {key: held for key, held in self.held.items() if held.request_id not in gone}
        asked: dict[str, Any] = {}
        for key, held in list(self.held.items()):
            try:
                held.request = held.request or held.resolve(self._tasks)
            except RequestError as error:
                self._let_go(key, PlacementAnswer(problem=f"The device request can't be read: {error}", is_final=True))
                continue
            waited_s, limit_s = (now - held.since).total_seconds(), held.request.wait_timeout_s
            if limit_s is not None and waited_s > limit_s:
                self._let_go(key, PlacementAnswer(problem=f"asked to wait at most {limit_s:g} s for {held.request}"))
                continue
            asked[held.request_id] = key
        self._answer(asked, replace(snapshot(), estimates=self._estimates()), now)

    def _answer(self, asked: Mapping[str, Any], snapshot: Snapshot, now: datetime) -> None:
        probes = []
        for key in asked.values():
            held = self.held[key]
            assert held.request is not None
            probes.append(held.pending(held.request, held.since, {}))
        for id_, decision in self._probes.decide(probes, snapshot, now).items():
            if isinstance(decision, Place | Refuse):
                self._let_go(asked[id_], answer_of(decision))
            elif isinstance(decision, Wait):
                log_wait(self.held[asked[id_]], decision, snapshot, now)

    def _let_go(self, key: Any, answer: PlacementAnswer) -> None:
        workload = self.held.pop(key).workload
        workload.ti.context_carrier = add_answer(workload.ti.context_carrier, answer)
        self._renew_token(workload, None)
        self._engine.hand_over_unplaced(workload)


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
