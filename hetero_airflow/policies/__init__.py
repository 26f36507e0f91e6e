"""Policies decide which request goes first and where it is placed. They are pure and run in Airflow's scheduler.

The simulator runs the same policies. `policy.py` has the Protocol, each policy has a file of its own, `core/` has what
they share, and `class_assignment/` has the algorithms that assign requests to classes of devices. `load_policy` holds
every policy to the quotas of teams (`quotas/`).

To add a policy, write ``policies/<name>.py`` and add a row to `POLICIES` and to this table. The contract suite in
``tests/policies/`` then tests it.

================== =================================================================================================
policy             choose it when
================== =================================================================================================
assignment         you have several device models and most tasks can resume. This is the default.
priority           you have one device model, and Airflow's priority weights say what is urgent.
fifo               you want the simplest rule: the oldest request first.
round_robin        many DAGs compete and each of them is to get its turn.
sjf                runs have similar lengths each time, and nothing may be preempted.
srtf               runs have similar lengths each time, tasks can resume, and each request takes about as many devices.
srsf               the same, but some requests take many devices and others few.
las                lengths are unknown, tasks can resume, and short runs should not wait for long ones.
mlfq               the same, with fewer preemptions: a run gives way only once it has had much service.
fair_share         teams share a cluster by weights and quotas.
critical_path      many workflows compete and each should end soon.
heft               one large workflow should end soon.
best_fit           shares and whole devices are mixed, and nothing is known of the requests to come.
expected_fill      shares and whole devices are mixed, and the mix of requests repeats.
consolidation      the same, tasks can resume, and large requests wait for devices of one worker.
max_min_fairness   tasks can resume and all of them should progress alike on unlike device models.
makespan           a batch of long runs with known lengths should end as early as possible.
load_balance       lengths are known, tasks can resume, and the mean completion time counts.
================== =================================================================================================
"""

from __future__ import annotations

from hetero_airflow.policies.quotas.team_quotas import TeamQuotas
from hetero_airflow.registry import load

GROUP = "hetero_airflow.policies"

POLICIES: dict[str, str] = {
    "priority": "hetero_airflow.policies.priority:PriorityPolicy",
    "fifo": "hetero_airflow.policies.fifo:Fifo",
    "round_robin": "hetero_airflow.policies.round_robin:RoundRobin",
    "sjf": "hetero_airflow.policies.sjf:Sjf",
    "srtf": "hetero_airflow.policies.srtf:Srtf",
    "srsf": "hetero_airflow.policies.srsf:Srsf",
    "las": "hetero_airflow.policies.las:Las",
    "mlfq": "hetero_airflow.policies.mlfq:Mlfq",
    "best_fit": "hetero_airflow.policies.best_fit:BestFit",
    "expected_fill": "hetero_airflow.policies.expected_fill:ExpectedFill",
    "consolidation": "hetero_airflow.policies.consolidation:Consolidation",
    "assignment": "hetero_airflow.policies.assignment:Assignment",
    "max_min_fairness": "hetero_airflow.policies.max_min_fairness:MaxMinFairness",
    "makespan": "hetero_airflow.policies.makespan:Makespan",
    "load_balance": "hetero_airflow.policies.load_balance:LoadBalance",
    "fair_share": "hetero_airflow.policies.fair_share:FairShare",
    "critical_path": "hetero_airflow.policies.critical_path:CriticalPath",
    "heft": "hetero_airflow.policies.heft:Heft",
}
"""Policy name → "module:class"; the class takes no arguments."""

SUBSTITUTES = {"fgd": "expected_fill", "makespan_lp": "makespan"}
"""Policy that is no longer offered → the one to use instead. The benchmarks still compare with the first."""


def load_policy(name: str) -> TeamQuotas:
    """A new instance of the policy with that name, from `POLICIES` or from an entry point, held to the teams' quotas.

    :raises RegistryError: there is no such policy, or it can't be imported
    """
    return TeamQuotas(load(GROUP, POLICIES, name, SUBSTITUTES)())
