import json
from dataclasses import replace

from hetero_airflow.simulator.record import JobOutcome, JobRecord, RunInterval, SimulationRecord
from hetero_airflow.simulator.reports.figures import measure, measure_timing
from hetero_airflow.simulator.reports.tables import as_json, comparison, group_rows, timing_rows

JOB = JobRecord(
    "a", "team <b>", "t", 0.0, 3600.0, 10800.0, JobOutcome.FINISHED, 1.0,
    (RunInterval(3600.0, 10800.0, "w", "nvidia/v100", 1.0),), best_device_s=3600.0,
)  # fmt: skip
SLOW = SimulationRecord("w", "fifo", {"nvidia/v100": 1}, (JOB,), {"seed": 7}, (0.001, 0.003), 1)
FAST = replace(SLOW, policy="priority", jobs=(replace(JOB, started_s=0.0, finished_s=5400.0),), decision_s=(0.5,))


def test_policies_stand_side_by_side_with_ratios_to_the_first() -> None:
    headers, rows = comparison([measure(SLOW), measure(FAST)])

    cells = {name: values for name, *values in rows}
    assert headers == ["figure", "fifo", "priority"]
    assert cells["JCT mean, h"] == ["3.000", "1.500 (×0.500)"]
    assert cells["wait mean, h"] == ["1.000", "0.000 (×0.000)"]
    assert cells["JCT mean, lower bound, h"] == ["1.000", "1.000 (×1.000)"]
    assert cells["makespan, h"] == ["3.000", "1.500 (×0.500)"]
    assert cells["makespan, lower bound, h"] == ["1.000", "1.000 (×1.000)"]
    assert cells["busy utilisation, %"] == ["66.67", "66.67"]
    assert cells["goodput utilisation, %"] == ["33.33", "33.33"]
    assert cells["jobs"] == ["1", "1"]


def test_a_figure_that_does_not_exist_is_a_dash() -> None:
    waiting = replace(SLOW, jobs=(replace(JOB, finished_s=None, outcome=JobOutcome.WAITING, intervals=()),))

    cells = {name: values for name, *values in comparison([measure(waiting), measure(SLOW)])[1]}

    assert cells["JCT mean, h"] == ["–", "3.000"]
    assert cells["makespan, h"] == ["–", "3.000"]
    assert cells["JCT mean, lower bound, h"] == cells["makespan, lower bound, h"] == ["–", "1.000"]


def test_groups_have_rows_of_their_own() -> None:
    assert group_rows(measure(SLOW)) == (
        ["group", "jobs", "finished", "JCT mean, h", "JCT p95, h", "wait mean, h", "wait p95, h"],
        [["team <b>", "1", "1", "3.000", "3.000", "1.000", "1.000"]],
    )


def test_json_says_that_it_is_simulated_and_holds_the_figures() -> None:
    report = json.loads(as_json([measure(SLOW), measure(FAST)]))

    assert report["simulated"] is True
    assert [policy["policy"] for policy in report["policies"]] == ["fifo", "priority"]
    assert report["policies"][0]["all"]["jct_s"] == {"mean": 10800.0, "p50": 10800.0, "p95": 10800.0, "p99": 10800.0}
    assert report["policies"][0]["window"] == {"first_job": 0, "last_job": None, "start_s": 0.0, "end_s": None}


def test_json_has_no_wall_clock_unless_asked() -> None:
    again = replace(SLOW, decision_s=(9.0,))

    assert as_json([measure(SLOW)]) == as_json([measure(again)])
    assert as_json([measure(SLOW)], [measure_timing(SLOW)]) != as_json([measure(again)], [measure_timing(again)])
    assert json.loads(as_json([measure(SLOW)], [measure_timing(SLOW)]))["policies"][0]["timing"]["cycles"] == 2


def test_json_has_no_number_that_json_does_not_have() -> None:
    endless = replace(SLOW, jobs=(replace(JOB, best_device_s=float("inf")),))

    assert json.loads(as_json([measure(endless)]), parse_constant=str)["policies"][0]["goodput_utilisation"] is None


def test_timing_rows_are_milliseconds() -> None:
    assert timing_rows([measure_timing(SLOW)]) == [
        ["decision p50, ms", "2.000"],
        ["decision p99, ms", "2.980"],
        ["decision slowest, ms", "3.000"],
        ["placements a second of deciding", "250"],
    ]


def test_a_simulation_that_was_not_timed_has_no_timing_rows() -> None:
    assert timing_rows([]) == []
