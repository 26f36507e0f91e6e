from __future__ import annotations

import pytest

from hetero_airflow.cli.requests.missing_request import missing_request_cause


@pytest.mark.parametrize(
    ("runs", "has_run", "states", "map_index", "expected"),
    [
        ([], False, {}, -1, ("no run of a DAG dag", "`airflow dags list` shows the DAGs")),
        (["r9", "r8"], False, {}, -1, ("no such run", "Its newest runs are r9, r8")),
        ([f"r{n}" for n in range(6)], False, {}, -1, ("no such run", "Its newest runs are r0, r1, r2, r3, r4, …")),
        (["r"], True, {}, -1, ("no such task in the run", "Its tasks are train, test")),
        (["r"], True, {-1: "success"}, 0, ("a task that is not mapped", "Leave --map-index out")),
        (
            ["r"],
            True,
            {0: "success", 1: None},
            -1,
            ("no such instance of a mapped task", "Give --map-index 0 or 1"),
        ),
        (
            ["r"],
            True,
            {-1: None},
            -1,
            ("a task that is not queued yet", "Try again when it is queued: it requests its devices then"),
        ),
        (
            ["r"],
            True,
            {2: "scheduled"},
            2,
            ("a task that is not queued yet", "Try again when it is queued: it requests its devices then"),
        ),
        (
            ["r"],
            True,
            {-1: "running"},
            -1,
            (
                "no request; the task instance is running",
                "It requests no device, it does not run with HeteroExecutor, or its history was pruned",
            ),
        ),
    ],
)
def test_what_is_wrong_with_the_question(runs, has_run, states, map_index, expected):
    assert missing_request_cause("dag", runs, has_run, ["train", "test"], states, map_index) == expected
