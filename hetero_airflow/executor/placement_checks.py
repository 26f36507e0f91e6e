"""Holds tasks that only ask whether a request could be placed now, and lets them go with the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow.executors.workloads import ExecuteTask

from hetero_airflow.contract.envelope import RequestOrTemplate
from hetero_airflow.contract.placement_check import PlacementAnswer, PlacementChecker, add_answer, answer_of
from hetero_airflow.engines.engine import AirflowEngine
from hetero_airflow.errors import RequestError
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask, log_wait
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Place, Refuse, Wait
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.policy import Policy

RenewToken = Callable[[ExecuteTask, float | None], None]
"""(workload, seconds): gives it a new token that is good for so long at most; None for as long as Airflow's own."""


class PlacementChecks:
    """The probes that wait; none of them is in the store or in anybody's way."""

    def __init__(
        self,
        policy: Policy,
        engine: AirflowEngine,
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
