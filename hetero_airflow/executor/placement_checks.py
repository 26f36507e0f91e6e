"""Placement checks: tasks that ask whether a request could be placed now. They wait like device tasks, without a lease.

The policy itself decides, on the present queue with the one request more, and nothing of the plan is carried out. So
the answer respects priorities, team shares, reservations and topology, which a look at free devices would not. It holds
for the moment: another task may be faster.

While it waits, a check is QUEUED like any waiting device task. It takes no process and no worker, and only the
executor's memory knows it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hetero_airflow.contract.placement_check import PlacementAnswer, add_answer
from hetero_airflow.errors import RequestError
from hetero_airflow.executor import events
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.pending_task import PendingTask
from hetero_airflow.executor.request_resolver import RequestResolver
from hetero_airflow.executor.run import Run
from hetero_airflow.model.plan import Decision, Place, Plan, Refuse, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.policies import load_policy
from hetero_airflow.policies.policy import Policy
from hetero_airflow.scheduling.hardware_wait import refusal_text, unknown_models

RECHECK = timedelta(seconds=30)
"""A decision may change with time alone: it is made again after this at the latest."""


class PlacementChecks:
    """The checks that wait. They are not in the store, so no other request competes with them."""

    def __init__(
        self,
        policy: Policy,
        reaches: Callable[[str], bool],
        context: PolicyContext,
        resolver: RequestResolver,
        hardware_wait: timedelta,
    ) -> None:
        self._checker = PlacementChecker(policy, reaches)
        self._hardware_wait = hardware_wait
        self._context = context
        self._resolver = resolver

    def answered(
        self, runs: Collection[Run], take_snapshot: Callable[[], Snapshot], now: datetime
    ) -> Iterator[tuple[Run, events.Event]]:
        """The checks that have an answer, which their workloads carry then."""
        undecided: dict[str, Run] = {}
        for run in runs:
            task = run.waiting_task
            try:
                request = task.request = task.request or self._resolver.resolve(task, now)
            except RequestError as error:
                problem = f"The device request can't be read: {error}"
                yield _answered(run, PlacementAnswer(problem=problem, is_final=True))
                continue
            if request is None:
                continue
            if request.wait_timeout_s is not None and task.waited_s(now) > request.wait_timeout_s:
                problem = f"asked to wait at most {request.wait_timeout_s:g} s for {request}"
                yield _answered(run, PlacementAnswer(problem=problem))
                continue
            undecided[run.request_id] = run
        if undecided:
            yield from self._decided(undecided, replace(take_snapshot(), estimates=self._context.estimates), now)

    def _decided(
        self, runs: Mapping[str, Run], snapshot: Snapshot, now: datetime
    ) -> Iterator[tuple[Run, events.Event]]:
        """What follows from the newest decision on each check; `runs`: request id → run."""
        tasks = [run.waiting_task for run in runs.values()]
        names = TaskNames.of(snapshot)
        checks = [task.as_pending() for task in tasks]
        for id_, decision in self._checker.decide(checks, snapshot, now).items():
            task = runs[id_].waiting_task
            if isinstance(decision, Place):
                yield _answered(runs[id_], answer_of(decision))
            elif isinstance(decision, Wait):
                if task.may_log_wait(decision, now):
                    task.log_wait(decision, names, now)
            elif (end := self._refusal(task, decision, snapshot, now)) is not None:
                yield _answered(runs[id_], end)

    def _refusal(self, task: PendingTask, refused: Refuse, snapshot: Snapshot, now: datetime) -> PlacementAnswer | None:
        """The final answer; None while the check waits for hardware that no known worker has."""
        request = task.as_pending().request
        if now < task.hardware_deadline(self._hardware_wait) and not unknown_models(request, snapshot.workers):
            return None
        problem = refusal_text(refused, request, snapshot.workers, self._hardware_wait)
        return PlacementAnswer(problem=problem, is_final=True)


def _answered(run: Run, answer: PlacementAnswer) -> tuple[Run, events.Event]:
    ti = run.waiting_task.workload.ti
    ti.context_carrier = add_answer(ti.context_carrier, answer)
    return run, events.Answered()


def answer_of(place: Place) -> PlacementAnswer:
    """The answer to a check that could be placed now."""
    device_ids = tuple(claim.device_id for claim in place.claims)
    return PlacementAnswer(worker_id=place.worker_id, device_ids=device_ids)


@dataclass(frozen=True, slots=True)
class _CachedDecision:
    decision: Decision
    sequence: int
    at: datetime


class PlacementChecker:
    """Decides on checks as the cycle would. It decides once a round at most, so it can't slow the scheduler down.

    Checks with the same request, weight and DAG get the same answer.

    :param reaches: whether the engine can run anything on a worker
    """

    def __init__(self, policy: Policy, reaches: Callable[[str], bool]) -> None:
        self._policy = policy
        self._reaches = reaches
        self._cached: dict[tuple[DeviceRequest, str, int], _CachedDecision] = {}

    def decide(self, checks: Sequence[PendingRequest], snapshot: Snapshot, now: datetime) -> dict[str, Decision]:
        """Request id → the newest decision on it, if there is one."""
        groups: dict[tuple[DeviceRequest, str, int], list[PendingRequest]] = {}
        for check in sorted(checks, key=PendingRequest.order):
            groups.setdefault((check.request, check.dag_id, check.weight), []).append(check)
        self._cached = {key: cached for key, cached in self._cached.items() if key in groups}
        stale = [key for key in groups if self._is_stale(self._cached.get(key), snapshot, now)]
        if stale:
            undecided = [key for key in stale if key not in self._cached]
            key = undecided[0] if undecided else min(stale, key=lambda key: self._cached[key].at)
            self._cached[key] = _CachedDecision(self._decision(groups[key][0], snapshot, now), snapshot.sequence, now)
        return {
            check.id: self._cached[key].decision._replace(request_id=check.id)
            for key, group in groups.items()
            if key in self._cached
            for check in group
        }

    def _is_stale(self, cached: _CachedDecision | None, snapshot: Snapshot, now: datetime) -> bool:
        return cached is None or cached.sequence != snapshot.sequence or now - cached.at >= RECHECK

    def _decision(self, check: PendingRequest, snapshot: Snapshot, now: datetime) -> Decision:
        question = replace(
            snapshot,
            workers=tuple(worker for worker in snapshot.workers if self._reaches(worker.id)),
            pending=tuple(sorted((*snapshot.pending, check), key=PendingRequest.order)),
            can_preempt=False,
        )
        try:
            return _decision_on(self._policy.decide(question, now), check.id)
        except Exception:  # noqa: BLE001  a policy from another package may raise anything; the cycle logs it
            return _decision_on(load_policy("priority").decide(question, now), check.id)


def _decision_on(plan: Plan, request_id: str) -> Decision:
    return next(decision for decision in plan.decisions if decision.request_id == request_id)
