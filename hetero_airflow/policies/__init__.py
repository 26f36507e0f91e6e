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
fair_share         teams share a cluster by weights and quotas.
critical_path      many workflows compete and each should end soon.
consolidation      shares and whole devices mix, tasks can resume, and large requests wait for devices of one worker.
max_min_fairness   tasks can resume and all of them should progress alike on unlike device models.
makespan           a batch of long runs with known lengths should end as early as possible.
================== =================================================================================================
"""

from hetero_airflow.policies.quotas.team_quotas import TeamQuotas
from hetero_airflow.registry import load

GROUP = "hetero_airflow.policies"

POLICIES: dict[str, str] = {
    "priority": "hetero_airflow.policies.priority:PriorityPolicy",
    "fifo": "hetero_airflow.policies.fifo:Fifo",
    "round_robin": "hetero_airflow.policies.round_robin:RoundRobin",
    "consolidation": "hetero_airflow.policies.consolidation:Consolidation",
    "assignment": "hetero_airflow.policies.assignment:Assignment",
    "max_min_fairness": "hetero_airflow.policies.max_min_fairness:MaxMinFairness",
    "makespan": "hetero_airflow.policies.makespan:Makespan",
    "fair_share": "hetero_airflow.policies.fair_share:FairShare",
    "critical_path": "hetero_airflow.policies.critical_path:CriticalPath",
}
"""Policy name → "module:class"; the class takes no arguments."""


def load_policy(name: str) -> TeamQuotas:
    """A new instance of the policy with that name, from `POLICIES` or from an entry point, held to the teams' quotas.

    :raises RegistryError: there is no such policy, or it can't be imported
    """
    return TeamQuotas(load(GROUP, POLICIES, name)())
