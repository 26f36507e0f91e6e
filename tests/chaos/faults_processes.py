"""kill -9 and SIGSTOP of what runs: the task, its supervisor, and Airflow's own components."""

from __future__ import annotations

import time

from tests.chaos.scene import Injury, Scene, Training


def task(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the task's process."""
    training = scene.train()
    scene.some_step(training)
    return training, training.wound()


def supervisor(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the process that looks after the task: the task dies with it, and nobody reports its end."""
    training = scene.train()
    scene.some_step(training)
    parent, injury = training.supervisor(), Injury(time.time(), training.step())
    parent.kill()
    return training, injury
