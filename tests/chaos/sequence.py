"""Random sequences of faults: the same seed makes the same sequence. Pure."""

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

FAULTS = 20
WINDOW_S = 150.0
"""The faults begin within this time. The tasks need about as long, without faults."""

WEIGHTS: dict[str, int] = {
    "kill_task": 2,
    "kill_supervisor": 2,
    "kill_scheduler": 2,
    "kill_api_server": 1,
    "kill_triggerer": 1,
    "kill_dag_processor": 1,
    "freeze_task": 1,
    "freeze_supervisor": 1,
    "freeze_worker": 2,
    "freeze_scheduler": 2,
    "freeze_api_server": 1,
    "freeze_triggerer": 1,
    "freeze_dag_processor": 1,
    "freeze_executor": 1,
    "freeze_database": 1,
    "kill_host": 2,
    "freeze_host": 2,
    "api_server_away": 2,
    "restart_database": 1,
    "kill_database": 1,
    "rename_host": 2,
    "leave_daemon": 2,
    "clear": 2,
    "mark_success": 1,
    "mark_failed": 1,
}
"""Kind of fault → how often it comes, relative to the others."""

POSTGRES_ONLY = {"restart_database", "kill_database", "freeze_database"}
LOCAL_ONLY = {"rename_host", "freeze_executor"}
"""Other engines run no tasks on the hosts of schedulers."""
FLEET_ONLY = {"kill_host", "freeze_host"}
"""The engine `local` has no other hosts."""


@dataclass(frozen=True)
class Step:
    """One fault.

    :param pick: 0 to 1: which of the tasks, processes or schedulers that there are at that moment
    :param for_s: how long it lasts
    """

    at_s: float
    kind: str
    pick: float
    for_s: float = 0.0


@dataclass(frozen=True)
class Sequence:
    """The faults of one run, and what its tasks do."""

    seed: int
    engine: str
    backend: str
    schedulers: int
    steps: tuple[Step, ...]
    plan: Mapping[str, list[dict[str, float]]]
    """Task id → for each mapped task, how long it uses its devices, and how long a daemon of it stays."""

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{self.engine}-{self.backend}-{self.schedulers}-{self.seed}"

    def to_json(self) -> str:
        """A text that `read_sequence` reads; one line a step, so that a person can leave some out."""
        head = {name: value for name, value in asdict(self).items() if name != "steps"}
        steps = ",\n  ".join(json.dumps(asdict(step)) for step in self.steps)
        return f'{json.dumps(head)[:-1]}, "steps": [\n  {steps}\n]}}\n'


def read_sequence(text: str) -> Sequence:
    """A sequence from its JSON text."""
    value: dict[str, Any] = json.loads(text)
    return Sequence(**{**value, "steps": tuple(Step(**step) for step in value["steps"])})


def random_sequence(
    seed: int, engine: str, backend: str, schedulers: int, tasks: Mapping[str, int], kinds: Collection[str] = ()
) -> Sequence:
    """The sequence of a seed.

    :param tasks: task id → number of mapped tasks
    :param kinds: the kinds of faults; empty: all that the engine and the database allow
    """
    rng = random.Random(f"{seed} {schedulers}")
    allowed = [kind for kind in WEIGHTS if (not kinds or kind in kinds) and _is_possible(kind, engine, backend)]
    plan = {
        id_: [{"nap_s": round(rng.uniform(5, 30), 1), "daemon_s": 0.0} for _ in range(count)]
        for id_, count in tasks.items()
    }
    steps = []
    for kind in rng.choices(allowed, [WEIGHTS[kind] for kind in allowed], k=FAULTS):
        if kind == "leave_daemon":
            task = rng.choice(plan[rng.choice(list(plan))])
            task["daemon_s"] = round(rng.uniform(10, 40), 1)
        steps.append(Step(round(rng.uniform(0, WINDOW_S), 1), kind, round(rng.random(), 3), _duration_s(kind, rng)))
    return Sequence(seed, engine, backend, schedulers, tuple(sorted(steps, key=lambda step: step.at_s)), plan)


def _is_possible(kind: str, engine: str, backend: str) -> bool:
    excluded = FLEET_ONLY if engine == "local" else LOCAL_ONLY
    return kind not in excluded and (backend == "postgres" or kind not in POSTGRES_ONLY)


def _duration_s(kind: str, rng: random.Random) -> float:
    """How long a fault lasts; long outages are rarer than short ones."""
    if kind == "api_server_away":
        return round(10 * 20 ** rng.random(), 1)
    if kind.startswith("freeze_"):
        return round(5 * 12 ** rng.random(), 1)
    is_restart = kind.startswith(("kill_", "restart_", "rename_")) and kind not in ("kill_task", "kill_supervisor")
    return round(rng.uniform(0, 8), 1) if is_restart else 0.0
