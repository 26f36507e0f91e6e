"""How `tests.lanes` spreads tests over processes."""

from types import SimpleNamespace

import pytest

from tests.lanes import AIRFLOWS, LaneScheduling, group_of

COLLECTED = [
    "tests/system/test_kills.py::test_a",
    "tests/system/test_kills.py::test_b[airflow_on_postgres]",
    "tests/web/test_page.py::test_c",
    "tests/test_units.py::test_d",
    "tests/test_clock.py::test_e",
    "tests/test_lint.py::test_f",
]


class Process:
    """A process of pytest-xdist that notes which tests it is sent."""

    def __init__(self, name):
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.sent = []

    def send_runtest_some(self, indices):
        self.sent += [COLLECTED[index] for index in indices]

    def shutdown(self):
        self.shutting_down = True


@pytest.fixture
def spread():
    """Runs all tests, one after the other in each process in turn; what each of two processes ran."""

    def run(minutes=None):
        options = SimpleNamespace(loadscopereorder=True, tx=["popen", "popen"], px=[])
        config = SimpleNamespace(option=options, getoption=lambda name: minutes, getvalue=options.__getattribute__)
        scheduling = LaneScheduling(config, None)
        processes = [Process("gw0"), Process("gw1")]
        for process in processes:
            scheduling.add_node(process)
        for process in processes:
            scheduling.add_node_collection(process, COLLECTED)
        scheduling.schedule()
        ran = [[], []]
        while any(len(process.sent) > len(ids) for process, ids in zip(processes, ran, strict=True)):
            for process, ids in zip(processes, ran, strict=True):
                if len(process.sent) > len(ids):
                    ids.append(process.sent[len(ids)])
                    scheduling.mark_test_complete(process, COLLECTED.index(ids[-1]))
        return ran, scheduling.left_out

    return run


def test_one_process_runs_all_that_boots_an_airflow_group_after_group(spread):
    (first, second), left_out = spread()
    assert sorted(first + second) == sorted(COLLECTED)
    assert first[:3] == COLLECTED[:3]
    assert second[0] == "tests/test_lint.py::test_f"
    assert [group_of(nodeid) for nodeid in second if group_of(nodeid) in AIRFLOWS] == []
    assert left_out == []


def test_no_group_begins_when_the_time_is_over_and_those_left_out_are_named(spread):
    ran, left_out = spread(minutes=-1)
    begun = {group_of(nodeid) for ids in ran for nodeid in ids}
    assert begun.isdisjoint(left_out)
    assert begun | set(left_out) == {group_of(nodeid) for nodeid in COLLECTED}
    assert left_out != []
