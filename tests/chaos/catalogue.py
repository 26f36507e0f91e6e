"""The faults: name → what strikes a training, and at which moment of the seed's choice."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos import faults_processes
from tests.chaos.scene import Injury, Scene, Training

Fault = Callable[[Scene], tuple[Training, Injury]]
"""Starts a training and strikes."""

FAULTS: dict[str, Fault] = {
    "task": faults_processes.task,
    "supervisor": faults_processes.supervisor,
}
