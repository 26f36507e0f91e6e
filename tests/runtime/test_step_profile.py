"""A few steps are profiled if the task asks for it."""

import gzip
import json
import logging
import sys

import pytest
import torch

from hetero_airflow.contract.progress import read_progress
from hetero_airflow.runtime.step_loop import StepLoop
from hetero_airflow.settings import PROFILE_VARIABLE


def multiply(step):
    with torch.profiler.record_function(f"step {step}"):
        torch.ones(4, 4) @ torch.ones(4, 4)


@pytest.fixture
def run(begin, control, monkeypatch, caplog):
    """Runs steps; what the log says, and the names in the trace that was kept, if there is one."""
    caplog.set_level(logging.INFO)

    def ran(steps=30, stop=None, wanted="1", work=multiply):
        monkeypatch.setenv(PROFILE_VARIABLE, wanted)
        for step in StepLoop(begin(), steps, 1000):
            work(step)
            if step == stop:
                break
        return "\n".join(caplog.messages)

    return ran


def names_in(tmp_path, key):
    with gzip.open(tmp_path / "store" / key) as file:
        return {event.get("name") for event in json.load(file)["traceEvents"]}


def test_the_trace_has_ten_steps_and_lies_beside_the_checkpoints(run, control, tmp_path, place):
    log = run()
    key = read_progress(control).profile
    assert key.startswith(f"{place.path}/profile-0-")
    assert f"Steps 11 to 20 are profiled: {place.url}/{key}." in log
    names = names_in(tmp_path, key)
    assert {name for name in names if name and name.startswith("step ")} == {f"step {step}" for step in range(10, 20)}
    assert "aten::matmul" in names


def test_a_loop_that_ends_earlier_keeps_what_there_is(run, control, tmp_path):
    assert "Steps 11 to 15 are profiled" in run(stop=15)
    assert "step 14" in names_in(tmp_path, read_progress(control).profile)


def test_a_loop_that_ends_before_says_so(run, control):
    assert "No step is profiled: the run had 10, and a profile begins with step 11." in run(steps=10)
    assert read_progress(control).profile is None


def test_without_torch_nothing_is_kept(run, control, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert "No step is profiled: the task does not use torch." in run(work=int)


@pytest.mark.parametrize("variables", [{PROFILE_VARIABLE: "0"}, {PROFILE_VARIABLE: "1", "RANK": "1"}])
def test_it_profiles_only_where_it_is_asked_for(run, control, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "profiled" not in run(wanted=variables[PROFILE_VARIABLE])


def test_a_store_that_is_full_costs_only_the_trace(run, control, monkeypatch):
    def full(self, key, source):
        raise OSError("No space left on device")

    monkeypatch.setattr("hetero_airflow.checkpoints.filesystem.FilesystemStore.put", full)
    assert "The profile is not kept: No space left on device" in run()
    assert read_progress(control).profile is None
