"""The promise of the example DAG: after a kill, it goes on where it was."""

import ast
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from hetero_airflow.checkpoints.loading import load_checkpoint
from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.checkpoints.place import CheckpointPlace, checkpoint_path
from tests.chaos.scene import Injury, Scene, Training

DAG_ID = "train_resumable"
STEPS = 160
"""Enough for a model that is good enough; fewer than lie between a checkpoint and its end in the store, after that."""
STEP = re.compile(r"step (\d+) on \w+: (\{.*\})")


@dataclass
class Example(Training):
    """A run of `dags/train_resumable.py`, whose journal is the log of its training task."""

    undisturbed: "Example | None" = None
    """A run with the same parameters and without a fault; None for that run itself."""

    @classmethod
    def start(cls, scene: Scene, seed: int, undisturbed: "Example | None" = None) -> "Example":
        conf = {"steps": STEPS, "seconds_per_step": 0.1, "save_every": 1, "seed": seed}
        run_id = scene.airflow.trigger(DAG_ID, conf)
        task_folder = scene.airflow.home / "logs" / f"dag_id={DAG_ID}" / f"run_id={run_id}" / "task_id=train"
        made = cls(scene.airflow, DAG_ID, run_id, task_folder / "attempt=1.log", seed, STEPS, undisturbed)
        scene.trainings.append(made)
        return made

    def lines(self) -> list[dict[str, Any]]:
        """The starts, each with its devices, and the steps, each with its metrics."""
        return list(_lines_of_run(super().lines(), self.run_id))

    def task(self) -> dict[str, Any]:
        tasks = self.airflow.tasks(self.dag_id, self.run_id)
        return next(ti for ti in tasks if ti["task_id"] == "train")

    def process(self) -> psutil.Process:
        return psutil.Process(self.task()["pid"])

    def place(self, start: int = -1) -> CheckpointPlace:
        url = (self.airflow.home / "checkpoints").as_uri()
        return CheckpointPlace(url=url, path=checkpoint_path(self.dag_id, "train", self.run_id, -1), token=0)

    def metrics(self) -> dict[int, dict[str, float]]:
        """Of each step."""
        return {line["step"]: line["metrics"] for line in self.done()}

    def mixed(self) -> list[str]:
        whole = (self.undisturbed or self).metrics()
        results = [(f"step {line['step']}", line["step"], line["metrics"]) for line in self.done()]
        place = self.place()
        for entry in self.entries():
            results.append((f"checkpoint {entry.key}", entry.step, entry.metrics))
            with tempfile.TemporaryDirectory() as folder:
                load_checkpoint(open_store(place), place, entry, Path(folder) / "checkpoint")
        differences = [
            f"{what} has {has}, not {whole.get(step)}" for what, step, has in results if has != whole.get(step)
        ]
        missing = set(range(self.steps)) - self.metrics().keys()
        return [*differences, f"steps {sorted(missing)} were never done"] if missing else differences


def _lines_of_run(log: list[dict[str, Any]], run_id: str) -> Iterator[dict[str, Any]]:
    starts, about = 0, {}
    for line in log:
        event, at = line["event"], datetime.fromisoformat(line["timestamp"]).timestamp()
        if event.startswith("Device: "):
            starts += 1
            devices = event.partition(". The task waited ")[0].rpartition(": ")[2]
            about = {"pid": f"{run_id}, start {starts}", "ids": devices.split(", ")}
            yield {**about, "place": None, "at": at}
        elif step := STEP.fullmatch(event):
            yield {**about, "step": int(step[1]), "metrics": ast.literal_eval(step[2]), "at": at}


def example(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the example's training, or, with an odd seed, of the process that looks after it.

    It ends with the same model as without the fault, and the evaluation uses a checkpoint from after the fault.
    """
    seed = scene.rng.randrange(1 << 30)
    undisturbed = Example.start(scene, seed)
    training = Example.start(scene, seed, undisturbed)
    scene.some_step(training)
    struck = training.supervisor() if scene.seed % 2 else training.process()
    training.wait_for_checkpoint()
    published, injury = training.entries()[-1].step, training.injury()
    struck.kill()
    for run in (training, undisturbed):
        run.finish()
    goes_on = re.search(rf"Going on after step (\d+) of {STEPS}", training.log())
    assert goes_on, "it started from the beginning"
    assert int(goes_on[1]) >= published, "it went on from a checkpoint before the last one"
    results = {name: training.airflow.xcom(DAG_ID, training.run_id, name) for name in ("train", "evaluate", "report")}
    assert results["train"] == undisturbed.airflow.xcom(DAG_ID, undisturbed.run_id, "train")
    assert results["evaluate"]["step"] > injury.step
    assert results["report"].startswith(f"Accuracy after {STEPS} steps: ")
    assert f"; after step {results['evaluate']['step']}: " in results["report"]
    return training, injury
