"""The options of a simulation, beside its workload, its cluster and its policy."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from hetero_airflow.model.run import usual_restart_s
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares

START = datetime(2000, 1, 1, tzinfo=UTC)
"""Second 0 of every workload."""


def simulated_time(time_s: float) -> datetime:
    """The time that is this many seconds after the start of the workload."""
    return START + timedelta(seconds=time_s)


class Knowledge(StrEnum):
    """What the policy knows of speeds and amounts of work."""

    NONE = "none"
    """Nothing, neither at first nor later."""
    LEARNED = "learned"
    """As in production: first the data sheets of devices, then what finished runs teach."""
    PROGRESS = "progress"
    """As in production, with tasks that report their steps: each (task, device class) is known after a minute."""
    HALF = "half"
    """The same, but every second job reports nothing."""
    SPEEDS = "speeds"
    """Each task's speed on each device class, as if it had been profiled, and how long finished jobs took. Nothing of
    the work of a job that has not ended."""
    ORACLE = "oracle"
    """Each job's speeds and its exact work."""


def fixed_restart_s(seconds: float) -> Callable[[int], float]:
    """The same restart time for each number of devices."""
    return lambda devices: seconds


@dataclass(frozen=True, slots=True)
class Options:
    """Durations are in seconds. By default there are no failures, and every event leads to a decision."""

    restart_s: Callable[[int], float] = usual_restart_s
    """Number of devices → how long a restarted job holds them without progress."""
    knowledge: Knowledge = Knowledge.SPEEDS
    can_preempt: bool = True
    """False: an engine that can't preempt."""
    cycle_s: float = 0.0
    """Decisions are made at multiples of this, as an executor does at its heartbeat; 0: at every event."""
    mean_uptime_s: float = math.inf
    """Mean time until a worker fails; exponentially distributed."""
    repair_s: float = 3600.0
    checkpoint_s: float = 1800.0
    """A running job saves this often, and a failure undoes the work since then. 0: nothing is ever undone."""
    saves_at_notice: bool = True
    """A preempted job saves first and loses only the restart. False: it has no time to save, so a preemption undoes as
    much work as a failure, and policies see each checkpoint."""
    until_s: float = math.inf
    """The simulation ends then at the latest."""
    measured: tuple[int, int] = (0, sys.maxsize)
    """Numbers of the first job that is measured and of the job after the last; the simulation ends with these jobs."""
    seed: int = 0
    """Seed of the failures."""
    shares: TeamShares = NO_TEAM_SHARES
    """The shares of teams, as in `[hetero] shares`."""

    def described(self) -> dict[str, str | int | float]:
        """What a report says of the options: the knowledge, the restart time, and what differs from the defaults."""
        defaults = Options()
        costs = [self.restart_s(n) for n in (1, 8, 9)]
        described: dict[str, str | int | float] = {"knowledge": self.knowledge.value}
        described["restart_s"] = costs[0] if len(set(costs)) == 1 else "/".join(f"{cost:g}" for cost in costs)
        for name in (
            "can_preempt", "cycle_s", "mean_uptime_s", "repair_s", "checkpoint_s", "saves_at_notice", "until_s", "seed",
        ):  # fmt: skip
            if getattr(self, name) != getattr(defaults, name):
                described[name] = getattr(self, name)
        return described
