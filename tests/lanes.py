"""How pytest-xdist spreads the tests: one process boots Airflows, one after the other; the others compute.

Two Airflows at once on two cores starve each other. So each test that boots one belongs to a group of `AIRFLOWS`, and
the first process runs these groups. The other processes run the files that compute, lint first. The first process takes
such files too, once no group is left. An API server alone starves nothing, so a test that boots no more computes.
"""

import subprocess
import time
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

AIRFLOWS = {
    "Airflow on SQLite": ("tests/system/",),
    "Airflow on PostgreSQL": ("tests/system/test_beside_other_executors.py", "tests/system/test_gangs.py"),
    "examples": ("tests/dags/test_example_dags.py",),
    "page": ("tests/web/test_page.py",),
    "Celery": ("tests/system/test_celery.py",),
    "Edge": ("tests/system/test_edge.py",),
    "outages": ("tests/system/test_outages.py",),
    "preload": ("tests/system/test_preload.py",),
    "object stores": ("tests/system/test_object_stores.py",),
    "stopping": ("tests/system/test_stopping.py",),
    "killed scheduler": ("tests/metrics/test_killed_scheduler.py",),
    "speeds": ("tests/system/test_learned_speeds.py",),
    "demo": ("tests/tools/test_demo.py",),
    "control plane": ("tests/system/kubernetes/",),
}
"""Group → the beginnings of its tests' node ids. The longest one counts. Each group shares its Airflow."""

COMPUTING = {
    "lint": ("tests/test_lint.py",),
    "command line": ("tests/cli/",),
    "checkpoints": ("tests/checkpoints/",),
}
"""The same for tests without an Airflow of their own that share a fixture over several files."""

ON_POSTGRES = "[airflow_on_postgres"
"""The parameter that takes a test to the second group."""

_STARTS = {start: group for groups in (AIRFLOWS, COMPUTING) for group, starts in groups.items() for start in starts}


def group_of(nodeid: str) -> str:
    """The group that a test belongs to; the tests of each other file are a group."""
    if ON_POSTGRES in nodeid:
        return "Airflow on PostgreSQL"
    starts = [start for start in _STARTS if nodeid.startswith(start)]
    return _STARTS[max(starts, key=len)] if starts else nodeid.partition("::")[0]


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests, group after group."""
    order = [*AIRFLOWS, *COMPUTING]
    ranks = {group: number for number, group in enumerate(order)}
    return sorted(items, key=lambda item: ranks.get(group_of(item.nodeid), len(order)))


class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps the tests of a group in one process, in their order.

    With ``--minutes``, no group begins after this time, and another group is the first one at each commit.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        self.left_out: list[str] = []
        """Groups that did not begin in time."""
        minutes: float | None = config.getoption("minutes")
        self._until = None if minutes is None else time.monotonic() + 60 * minutes
        self._airflows = list(AIRFLOWS) if minutes is None else _turned(list(AIRFLOWS))

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if group := self._next_group(node):
            self.workqueue.move_to_end(group, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._until is not None and time.monotonic() > self._until:
            self.left_out += self.workqueue
            self.workqueue.clear()
        if self.workqueue and self._next_group(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _next_group(self, node: WorkerController) -> str | None:
        airflows = [group for group in self._airflows if group in self.workqueue]
        if airflows and node is self.nodes[0]:
            return airflows[0]
        computing = (group for group in (*COMPUTING, *self.workqueue) if group in self.workqueue)
        return next((group for group in computing if group not in AIRFLOWS), None)


def _turned(groups: list[str]) -> list[str]:
    """The groups in the same order, from another one on at each commit."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    begin = int(commit, 16) % len(groups)
    return groups[begin:] + groups[:begin]
