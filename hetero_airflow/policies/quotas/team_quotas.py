"""Quotas of teams, under every policy. A team with a quota lends what it does not use, and gets it back first.

`load_policy` puts this around each policy, so no policy knows of quotas. The policy decides up to three times:

1. On all requests. Its plan gives the order in which a team's requests use its quota: those that can start now come
   first. A request that would exceed the quota of its team, or of a team that this is a part of, is above the quota.
2. On the requests within the quotas, by its own rule. Where leases can be taken back, those above a quota are, for the
   requests that fit nowhere: the youngest leases of the team, gangs as a whole (`LeastLossPreemption`).
3. On the requests above a quota. They borrow: they get what is then free on the workers where no request within a
   quota waits that could run there. They take nothing back.

Weights have two meanings. The policy `fair_share` orders all teams by them. Under every policy they divide what is
lent: the team borrows next that holds the least accelerators for its weight. They change no other decision, because
each policy has an order of its own.

A quota counts accelerators, a share as its fraction, a request with alternatives by the largest. Cores don't count.
Without quotas the plan is that of the policy alone. Compare cohorts and `borrowingLimit` in Kueue, whose queues also
let smaller requests pass a larger one that does not fit its quota (`BestEffortFIFO`).
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Account, Plan, Reason, ReasonCode, Refuse, Wait, numbered
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot, UsageByWorker
from hetero_airflow.model.team_shares import TeamPath
from hetero_airflow.policies.core.gang_queue import group_by_gang
from hetero_airflow.policies.core.list_scheduler import best_placement
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption
from hetero_airflow.policies.core.request_progress import RequestProgress
from hetero_airflow.policies.policy import Policy, period_of
from hetero_airflow.policies.quotas.team_devices import DevicesByTeam, Team, wanted_accelerators

Unit = tuple[PendingRequest, ...]
"""A single request, or all waiting members of a gang."""


class TeamQuotas:
    """The plans of a policy, held to the quotas of `TeamShares`."""

    def __init__(self, wrapped: Policy) -> None:
        self.wrapped = wrapped
        self.name: str = getattr(wrapped, "name", type(wrapped).__name__)
        self.period_s = period_of(wrapped)
        self._matcher = Matcher(TightFitScorer())

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request: those within the quotas first, then those above."""
        first = self.wrapped.decide(snapshot, now)
        if not snapshot.estimates.shares.has_quotas or not snapshot.workers:
            return first
        requests = {pending.id: pending for pending in snapshot.pending}
        queue = tuple(group_by_gang([requests[decision.request_id] for decision in first.decisions]))
        above = _units_above_quotas(snapshot, queue, first)
        borrowed = DevicesByTeam(snapshot).borrowed(snapshot)
        if not above and not borrowed:
            return first
        ids_above = {pending.id for unit, _ in above for pending in unit}
        within = tuple(pending for pending in snapshot.pending if pending.id not in ids_above)
        plan = self.wrapped.decide(replace(snapshot, pending=within), now) if above else first
        waiting = [requests[decision.request_id] for decision in plan.decisions if isinstance(decision, Wait)]
        snapshot = _after(snapshot, plan)
        index = WorkerIndex(self._matcher, snapshot)
        if borrowed and snapshot.can_preempt:
            plan = _with_returned_devices(plan, waiting, borrowed, index, snapshot, now)
        lent = self._lend([unit for unit, _ in above], waiting, index, snapshot, now)
        placed = {place.request_id for place in (*plan.places, *lent.places)}
        teams = DevicesByTeam(snapshot)
        for unit in queue:
            if unit[0].id in placed:
                teams.hold(unit)
        places = {place.request_id: place for place in lent.places}
        refused = {decision.request_id: decision for decision in first.decisions if isinstance(decision, Refuse)}
        reasons: dict[tuple[TeamPath, str, float], Reason] = {}
        decisions = [
            places.get(pending.id) or refused.get(pending.id) or self._wait(pending, unit, team, teams, reasons)
            for unit, team in above
            for pending in unit
        ]
        until = min((at for at in (first.until, plan.until, lent.until) if at is not None), default=None)
        return Plan(numbered((*plan.decisions, *decisions)), plan.preemptions, until)

    def _lend(
        self,
        above: Sequence[Unit],
        waiting: Sequence[PendingRequest],
        index: WorkerIndex,
        snapshot: Snapshot,
        now: datetime,
    ) -> Plan:
        """The plan for the requests above a quota, on what no waiting request within a quota could use."""
        wanted = {
            alternative.key: alternative for pending in waiting for alternative in pending.request.alternatives
        }.values()
        idle = tuple(
            entry.worker
            for entry in index.entries
            if not any(index.matcher.feasibility(alternative, entry.shape).is_servable for alternative in wanted)
        )
        if not above or not idle:
            return Plan()
        ids = {worker.id for worker in idle}
        leases = tuple(lease for lease in snapshot.leases if lease.worker_id in ids)
        snapshot = replace(snapshot, workers=idle, leases=leases, can_preempt=False)

        def decide(units: Iterable[Unit]) -> tuple[Plan, float]:
            """A plan for these units, and how many accelerators it lends."""
            members = tuple(pending for unit in units for pending in unit)
            plan = self.wrapped.decide(replace(snapshot, pending=members), now)
            placed = {place.request_id for place in plan.places}
            return plan, wanted_accelerators(pending for pending in members if pending.id in placed)

        plan, devices = decide(above)
        if devices and len(plan.places) < len(plan.decisions):
            by_weight, as_many = decide(_picked_by_weight(above, devices, DevicesByTeam(snapshot)))
            if as_many >= devices:
                return by_weight
        return plan

    def _wait(
        self,
        pending: PendingRequest,
        unit: Unit,
        team: Team,
        teams: DevicesByTeam,
        reasons: dict[tuple[TeamPath, str, float], Reason],
    ) -> Wait:
        """Equal requests of a team share their reason."""
        wanted = wanted_accelerators(unit)
        key = team.path, pending.request.fingerprint, wanted
        if key not in reasons:
            now_held = teams.team_at(team.path).held
            devices = "device" if team.quota == 1 else "devices"
            found = f"team {'/'.join(team.path)} has {now_held:g} of its {team.quota:g} {devices}, and "
            is_full = now_held + wanted > team.quota
            found += "none to borrow" if is_full else "its other requests come first"
            reasons[key] = Reason(ReasonCode.QUOTA, str(pending.request), found)
        return Wait(pending.id, 0, reasons[key], Account(self.name, "waits for the quota of its team"))


def _units_above_quotas(snapshot: Snapshot, queue: Sequence[Unit], first: Plan) -> list[tuple[Unit, Team]]:
    """The units that would exceed a quota, in the order of the queue, each with the team whose quota it is."""
    teams = DevicesByTeam(snapshot)
    placed = {place.request_id for place in first.places}
    above: list[tuple[Unit, Team]] = []
    for unit in sorted(queue, key=lambda unit: unit[0].id not in placed):
        team = teams.exceeded_by(unit)
        if team is None:
            teams.hold(unit)
        else:
            above.append((unit, team))
    return above


def _after(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot with what the plan places and takes back."""
    by_worker = dict(UsageByWorker.of(snapshot.usage).by_worker)
    for place in plan.places:
        used = dict(by_worker.get(place.worker_id, {}))
        for claim in place.claims:
            before = used.get(claim.device_id, DeviceUsage())
            milli, memory = before.share_milli + claim.share_milli, before.memory_bytes + claim.memory_bytes
            used[claim.device_id] = DeviceUsage(milli, memory, before.last_granted_at)
        by_worker[place.worker_id] = used
    ending = {preemption.lease_id for preemption in plan.preemptions}
    return replace(snapshot, usage=UsageByWorker(by_worker)).with_preempted(ending)


def _with_returned_devices(
    plan: Plan,
    waiting: Sequence[PendingRequest],
    borrowed: frozenset[str],
    index: WorkerIndex,
    snapshot: Snapshot,
    now: datetime,
) -> Plan:
    """The plan that also takes borrowed devices back for the waiting requests that fit nowhere."""

    def rank(progress: RequestProgress, estimates: Estimates) -> Rank:
        return (float(progress.pending.id in borrowed),)

    returned = LeastLossPreemption("quota", PreemptionRules(rank), index, snapshot, now)
    reasons: dict[str, Reason] = {}
    for pending in waiting:
        if not pending.gang and best_placement(index, pending.request, None) is None:
            reason = returned.plan_for((pending,), None)
            if reason is not None:
                reasons[pending.id] = reason
    decisions = tuple(
        decision._replace(reason=reasons[decision.request_id])
        if isinstance(decision, Wait) and decision.request_id in reasons
        else decision
        for decision in plan.decisions
    )
    ends = [at for at in (plan.until, returned.until) if at is not None]
    return Plan(decisions, (*plan.preemptions, *returned.preemptions()), min(ends, default=None))


def _picked_by_weight(units: Iterable[Unit], devices: float, teams: DevicesByTeam) -> list[Unit]:
    """The units that borrow so many devices, turn by turn: the team next that holds the least for its weight."""
    queues: defaultdict[TeamPath, list[Unit]] = defaultdict(list)
    for unit in units:
        queues[teams.team_of(unit[0]).path].append(unit)
    for queue in queues.values():
        queue.reverse()
    turns = [(teams.team_at(path).turn, path) for path in queues]
    heapq.heapify(turns)
    picked: list[Unit] = []
    while turns:
        turn, path = heapq.heappop(turns)
        team, queue = teams.team_at(path), queues[path]
        if team.turn != turn:  # a team beside it in the tree has borrowed since
            heapq.heappush(turns, (team.turn, path))
            continue
        unit = queue.pop()
        wanted = wanted_accelerators(unit)
        if wanted <= devices:
            devices -= wanted
            team.hold(wanted)
            picked.append(unit)
        if queue:
            heapq.heappush(turns, (team.turn, path))
    return picked
