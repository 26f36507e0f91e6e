"""The scene of a fault: a running Airflow, a training on it, and the checks of both afterwards."""

import contextlib
import json
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psutil
from local_airflow import LocalAirflow
from sqlalchemy import NullPool, create_engine, text

from hetero_airflow.checkpoints.index import CheckpointEntry
from hetero_airflow.checkpoints.loading import load_checkpoint, read_index
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.runtime.state.files import read_state
from tests.chaos.reference import Reference
from tests.checkpoints.fault_proxy import Fault

PATIENCE_S = 300.0
"""The time limit of each wait. The machine may be busy with other work."""


@dataclass(frozen=True)
class Injury:
    """When a fault happened to a training."""

    at: float
    """POSIX time."""
    step: int
    """The last step that was done then."""
    framework_s: float = 0.0
    """How much of the time after it went into restarting the scheduler."""


@dataclass
class Training:
    """One run of a training DAG, seen from outside: by its journal, its processes and its checkpoints."""

    airflow: LocalAirflow
    dag_id: str
    run_id: str
    journal: Path
    seed: int
    steps: int

    @property
    def reference(self) -> Reference:
        return Reference.of(self.seed, self.steps)

    def lines(self) -> list[dict[str, Any]]:
        """What the training has noted, in the order of writing."""
        if not self.journal.exists():
            return []
        return [json.loads(line) for line in self.journal.read_text().splitlines()]

    def starts(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "place" in line]

    def done(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "step" in line]

    def step(self) -> int:
        """The last step done."""
        done = self.done()
        return done[-1]["step"] if done else -1

    def wait_for_step(self, step: int) -> None:
        self._wait(lambda: self.step() >= step, f"step {step}")

    def wait_for_recovery(self, injury: Injury) -> None:
        """Wait until a step beyond the failure point is done."""
        self._wait(lambda: self.recovery(injury) is not None, f"steps beyond {injury.step}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        asked_at_s = time.monotonic()

        def is_met() -> bool:
            nonlocal asked_at_s
            if condition():
                return True
            if time.monotonic() < asked_at_s + 1:
                return False
            asked_at_s = time.monotonic()
            assert not self.is_over() or condition(), f"it ended as {self.task()['state']}:\n{self.log()}"
            return False

        self.airflow.wait_until(is_met, what, PATIENCE_S, 0.05)

    def wait_for_checkpoint(self, count: int = 1) -> None:
        """Wait until this many checkpoints are published."""
        self.airflow.wait_until(lambda: len(self.entries()) >= count, f"{count} checkpoints", PATIENCE_S, 0.05)

    def is_over(self) -> bool:
        return self.task()["state"] in ("success", "failed", "upstream_failed")

    def task(self) -> dict[str, Any]:
        return self.airflow.tasks(self.dag_id, self.run_id)[0]

    def process(self) -> psutil.Process:
        """The task's own process, at its last start."""
        return psutil.Process(self.starts()[-1]["pid"])

    def supervisor(self) -> psutil.Process:
        parent = self.process().parent()
        assert parent is not None
        return parent

    def wound(self, signal_: signal.Signals = signal.SIGKILL) -> Injury:
        """Signal the task's process."""
        process, injury = self.process(), self.injury()
        process.send_signal(signal_)
        return injury

    def injury(self) -> Injury:
        """What strikes it now."""
        return Injury(time.time(), self.step())

    def place(self, start: int = -1) -> CheckpointPlace:
        return CheckpointPlace.model_validate_json(self.starts()[start]["place"])

    def entries(self) -> tuple[CheckpointEntry, ...]:
        """The checkpoints in the index."""
        if not self.starts():
            return ()
        place = self.place()
        index = read_index(open_store(place), place.path)
        return index.entries if index else ()

    def log(self) -> str:
        """All tries."""
        return "\n".join(
            self.airflow.log_text(self.dag_id, self.run_id, "train", number)
            for number in range(1, self.task()["try_number"] + 1)
        )

    def finish(self) -> None:
        """Wait until the run is over. It must be a success."""
        state = self.airflow.wait_for_run(self.dag_id, self.run_id, PATIENCE_S)
        assert state == "success", f"the training ended as {state}:\n{self.log()[-6000:]}"

    def tries(self) -> int:
        """The retries that Airflow counts."""
        return int(self.task()["try_number"])

    def found_s(self, injury: Injury, database: str) -> float | None:
        """Seconds until Airflow knew that this run of it was over; None if it went on all the time."""
        moments = [moment - injury.at for moment in ends_of(self.run_id, database) if moment > injury.at]
        return min(moments) if len(self.starts()) > 1 and moments else None

    def recovery(self, injury: Injury) -> tuple[float, int] | None:
        """Seconds until a step beyond the failure point was done, and how many steps were done again after it so far.

        None while there is no such step.

        Of a process that did not survive, the failure point is its last step, even if it came a moment after the fault.
        """
        done = self.done()
        again = [start for start in self.starts() if start["at"] > injury.at]
        parted = again[0]["at"] if again else injury.at
        before = [line["step"] for line in done if line["at"] <= parted]
        after = [line for line in done if line["at"] > parted]
        beyond = next((line for line in after if line["step"] > max(before)), None)
        if beyond is None:
            return None
        return beyond["at"] - injury.at, _repeated([*before, *(line["step"] for line in after)]) - _repeated(before)

    def mixed(self) -> list[str]:
        """The faults in the journal and the checkpoints; empty if there are none."""
        problems = self.reference.differences(self.done(), self.steps)
        place = self.place()
        store = open_store(place)
        for entry in self.entries():
            with tempfile.TemporaryDirectory() as folder:
                into = Path(folder) / "checkpoint"
                load_checkpoint(store, place, entry, into)
                if self.reference.digest_of(read_state(into)) != self.reference.digests[entry.step]:
                    problems.append(f"checkpoint {entry.key} is not the state after step {entry.step}")
        return problems


@dataclass
class Scene:
    """One fault's stage: what it may break, and the seed that picks the moments."""

    airflow: LocalAirflow
    backend: str
    seed: int
    fault: str
    database: str
    s3_faults: dict[str, Fault] = field(default_factory=dict)
    """Path of a task instance's checkpoints → what goes wrong with requests for them. One for all seeds."""
    postgres: Any = None
    plain_start_s: float = 0.0
    """From the trigger to the first step of a training without a fault."""
    rng: random.Random = field(init=False)
    trainings: list[Training] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed} {self.fault}")

    def train(self, store: str = "files", steps: int = 40, **conf: Any) -> Training:
        """Start a training."""
        seed = self.rng.randrange(1 << 30)
        journal = Path(tempfile.mkdtemp(prefix="training-", dir=self.airflow.home)) / "journal.jsonl"
        dag_id = f"train_{store}"
        run_id = self.airflow.trigger(dag_id, {"journal": str(journal), "steps": steps, "seed": seed, **conf})
        training = Training(self.airflow, dag_id, run_id, journal, seed, steps)
        self.trainings.append(training)
        return training

    def some_step(self, training: Training, first: int = 6, last: int = 20) -> None:
        """Let the training run until a step and a moment in it that the seed chooses."""
        training.wait_for_step(self.rng.randint(first, last))
        time.sleep(self.rng.uniform(0, 0.25))

    @contextlib.contextmanager
    def s3_fault(self, path: str, fault: Fault) -> Iterator[None]:
        """Let requests for these checkpoints fail in the meantime."""
        self.s3_faults[path] = fault
        yield
        del self.s3_faults[path]

    def fault_of(self, method: str, url_path: str, number: int) -> str | None:
        """The fault of a request to S3, for the proxy."""
        faults = (fault for path, fault in tuple(self.s3_faults.items()) if path in unquote(url_path))
        return next((fault(method, url_path, number) for fault in faults), None)

    def launch_scheduler(self) -> float:
        """Restart the scheduler. Returns the seconds until its loop began."""
        log, began = self.airflow.home / "scheduler.log", time.monotonic()
        offset = log.stat().st_size
        self.airflow.launch("scheduler")

        def loops() -> bool:
            with log.open("rb") as file:
                file.seek(offset)
                return b"Adopting or resetting orphaned tasks" in file.read()

        self.wait_until(loops, "the scheduler to start", every_s=0.05)
        return time.monotonic() - began

    def restart(self, component: str) -> None:
        """kill -9 of a component of Airflow; start it again some seconds later, and wait until it answers."""
        self.airflow.kill(component)
        time.sleep(self.rng.uniform(0, 3))
        self.airflow.launch(component)
        self.wait_until(self.airflow.is_healthy, f"the {component} to answer")

    def follow_up(self, count: int = 100) -> tuple[list[dict[str, Any]], int]:
        """Run a hundred new tasks. Returns their notes, and how many were lost."""
        run_id = self.airflow.trigger("fresh")
        uses = self.airflow.home / "uses.jsonl"
        offset = uses.stat().st_size if uses.exists() else 0
        self.airflow.wait_for_run("fresh", run_id, 3 * PATIENCE_S)
        states = [task["state"] for task in self.airflow.tasks("fresh", run_id)]
        with uses.open() as file:
            file.seek(offset)
            noted = [json.loads(line) for line in file]
        return noted, count - states.count("success")

    def still_leased(self) -> list[str]:
        """Leases that are not over."""
        return [lease.id for lease in self.airflow.store().snapshot().leases]

    def wait_until(self, condition: Callable[[], Any], what: str, every_s: float = 0.1) -> Any:
        return self.airflow.wait_until(condition, what, PATIENCE_S, every_s)


def _repeated(steps: list[int]) -> int:
    return len(steps) - len(set(steps))


def uses_of(trainings: list[Training]) -> list[dict[str, Any]]:
    """Each process of the trainings as a use of its devices, from its first note to its last."""
    by_process: dict[int, list[dict[str, Any]]] = {}
    for training in trainings:
        for line in training.lines():
            by_process.setdefault(line["pid"], []).append(line)
    return [
        {"ids": lines[0]["ids"], "start": lines[0]["at"], "end": lines[-1]["at"]}
        for lines in by_process.values()
    ]  # fmt: skip


ENDS = """
SELECT task_reschedule.end_date FROM task_reschedule JOIN task_instance ON ti_id = task_instance.id
WHERE task_instance.run_id = :run_id
UNION ALL SELECT end_date FROM task_instance_history WHERE run_id = :run_id AND end_date IS NOT NULL
"""


def ends_of(run_id: str, database: str) -> list[float]:
    """The ends of the runs after which a task had to run again, as POSIX times."""
    with create_engine(database, poolclass=NullPool).connect() as connection:
        ends = [datetime.fromisoformat(str(moment)) for moment in connection.scalars(text(ENDS), {"run_id": run_id})]
    return [(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() for moment in ends]
