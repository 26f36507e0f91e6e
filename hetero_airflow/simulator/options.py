"""What a simulation depends on beside its workload, its cluster and its policy."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hetero_airflow.model.restart import usual_restart_s
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares

START = datetime(2000, 1, 1, tzinfo=UTC)
"""Second 0 of every workload."""


class Knowledge(StrEnum):
    """What the policy is told of speeds and works before it has seen anything."""

    NONE = "none"
    """Nothing of speeds and works, neither at first nor later."""
    LEARNED = "learned"
    """What the makers' data sheets say of devices, and then what the runs that have ended teach, as in production."""
    SPEEDS = "speeds"
    """Each task's speed on each device class, as if it had been profiled; how long jobs of any task took, once they
    have ended; nothing of the work of a job that has not ended."""
    ORACLE = "oracle"
    """Each job's speeds and its exact work."""


def fixed_restart_s(seconds: float) -> Callable[[int], float]:
    """The same for each number of devices."""
    return lambda devices: seconds


@dataclass(frozen=True, slots=True)
class Options:
    """Seconds throughout. The defaults are a world without failures, in which decisions are made at every event."""

    restart_s: Callable[[int], float] = usual_restart_s
    """Number of devices → time for which a job that ran before holds them without progress."""
    knowledge: Knowledge = Knowledge.SPEEDS
    can_preempt: bool = True
    """False: an engine that has no way to take devices back, as LocalExecutor in production today."""
    cycle_s: float = 0.0
    """Decisions are made at multiples of this, as by an executor that has a heartbeat; 0: at every event."""
    mean_uptime_s: float = math.inf
    """Of a worker, until it fails; exponentially distributed."""
    repair_s: float = 3600.0
    checkpoint_s: float = 1800.0
    """A failure undoes the work since the last multiple of this of its stay; 0 is all the time."""
    saves_at_notice: bool = True
    """A preempted job saves first and loses nothing but the restart. False: there is no time for it, as after an engine
    that just ends tasks, so that a preemption undoes what a failure does; policies are told of each checkpoint."""
    until_s: float = math.inf
    """Where the simulation ends at the latest."""
    measured: tuple[int, int] = (0, sys.maxsize)
    """From and up to which job, by number, the figures count; the simulation ends when all of them have ended."""
    seed: int = 0
    """Of the failures."""
    shares: TeamShares = NO_TEAM_SHARES
    """Who is entitled to how much, as `[hetero] shares` says it."""

    def told(self) -> dict[str, str | int | float]:
        """What a report says of them: those that are not as usual."""
        usual = Options()
        costs = [self.restart_s(n) for n in (1, 8, 9)]
        told: dict[str, str | int | float] = {"knowledge": self.knowledge.value}
        told["restart_s"] = costs[0] if len(set(costs)) == 1 else "/".join(f"{cost:g}" for cost in costs)
        for name in (
            "can_preempt", "cycle_s", "mean_uptime_s", "repair_s", "checkpoint_s", "saves_at_notice", "until_s", "seed",
        ):  # fmt: skip
            if getattr(self, name) != getattr(usual, name):
                told[name] = getattr(self, name)
        return told
