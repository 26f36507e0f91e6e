"""The expected result of a training: the same steps, without Airflow, faults and checkpoints."""

import functools
from dataclasses import dataclass
from typing import Any

from tests.chaos.dag_modules import DAGS, dag_module

TRAINING = DAGS / "chaos_training.py"


@dataclass(frozen=True)
class Reference:
    """Loss and state after each step of an uninterrupted training."""

    losses: tuple[float, ...]
    digests: tuple[str, ...]

    @classmethod
    @functools.cache
    def of(cls, seed: int, steps: int) -> "Reference":
        model = dag_module("chaos_training").Model(seed)
        losses, digests = [], []
        for _ in range(steps):
            losses.append(model.step())
            digests.append(model.digest())
        return cls(tuple(losses), tuple(digests))

    @staticmethod
    def digest_of(state: Any) -> str:
        """The digest of a saved state."""
        model = dag_module("chaos_training").Model(0)
        model.load_state_dict(state)
        return str(model.digest())

    def differences(self, done: list[dict[str, Any]], steps: int) -> list[str]:
        """The differences between the steps of a training and those of an uninterrupted one, bit for bit."""
        problems = [
            f"step {line['step']} has the loss {line['loss']!r}, not {self.losses[line['step']]!r}"
            for line in done
            if line["loss"] != self.losses[line["step"]]
        ]
        missing = set(range(steps)) - {line["step"] for line in done}
        if missing:
            problems.append(f"steps {sorted(missing)} were never done")
        last: dict[int, int] = {}
        for line in done:
            if line["step"] != last.get(line["pid"], line["step"] - 1) + 1:
                problems.append(f"process {line['pid']} went from step {last[line['pid']]} to {line['step']}")
            last[line["pid"]] = line["step"]
        return problems
