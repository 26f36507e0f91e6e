"""Policies: who goes first, and where. Pure.

To add one: write ``policies/<name>.py`` and add a row to `POLICIES`; the contract suite runs over
every row by itself.
"""

from __future__ import annotations

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
    "fgd": "hetero_airflow.policies.fgd:Fgd",
    "expected_fill": "hetero_airflow.policies.expected_fill:ExpectedFill",
    "consolidation": "hetero_airflow.policies.consolidation:Consolidation",
    "assignment": "hetero_airflow.policies.assignment:Assignment",
    "max_min_fairness": "hetero_airflow.policies.max_min_fairness:MaxMinFairness",
    "makespan": "hetero_airflow.policies.makespan:Makespan",
    "makespan_lp": "hetero_airflow.policies.makespan_lp:MakespanLp",
    "load_balance": "hetero_airflow.policies.load_balance:LoadBalance",
    "easy": "hetero_airflow.policies.easy:Easy",
    "conservative": "hetero_airflow.policies.conservative:Conservative",
    "fair_share": "hetero_airflow.policies.fair_share:FairShare",
    "critical_path": "hetero_airflow.policies.critical_path:CriticalPath",
    "heft": "hetero_airflow.policies.heft:Heft",
}
"""Policy name → "module:class"; the class takes no arguments."""
