"""A rank as torchrun starts it, without torchrun and without torch."""

import os
import subprocess
import sys

import pytest

from hetero_airflow.contract.notice import Stopped
from hetero_airflow.runtime.rank_process import (
    PARENT_VARIABLE,
    RANKS_VARIABLE,
    latest_rank_exits,
    output_pipe,
)


@pytest.fixture
def run(tmp_path):
    """Runs a script as a rank; its exit code, what it left word of, and its output."""

    def ran(script, rank=0, restart=0, *argv):
        (tmp_path / "script.py").write_text(script)
        output_pipe(tmp_path, rank).touch()  # a plain file does as well
        environment = {
            **os.environ,
            RANKS_VARIABLE: str(tmp_path),
            PARENT_VARIABLE: str(os.getpid()),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "TORCHELASTIC_RESTART_COUNT": str(restart),
        }
        target = argv or (str(tmp_path / "script.py"),)
        command = [sys.executable, "-u", "-m", "hetero_airflow.runtime.rank_process", *target]
        code = subprocess.run(command, env=environment, cwd=tmp_path, check=False).returncode
        ends = {end.rank: end for end in latest_rank_exits(tmp_path)}
        return code, ends.get(rank), output_pipe(tmp_path, rank).read_text()

    return ran


def test_the_script_is_the_main_program_and_finds_what_lies_beside_it(run, tmp_path):
    (tmp_path / "beside.py").write_text("words = 'well'")
    code, end, output = run("import sys, beside\nprint(__name__, beside.words, len(sys.argv))")
    assert (code, output) == (0, "__main__ well 1\n")
    assert (end.stopped, end.raised) == (None, ())


def test_a_module_runs_as_well(run, tmp_path):
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert run("", 0, 0, "-m", "mine", "a", "b")[2] == "__main__ ['a', 'b']\n"


def test_the_first_rank_shows_once_what_is_logged(run):
    says = "import logging\n{}\nlogging.getLogger('hetero_airflow.runtime').info('saved')"
    assert run(says.format(""))[2] == "saved\n"
    assert run(says.format("logging.basicConfig()"))[2] == "INFO:hetero_airflow.runtime:saved\n"
    assert run(says.format(""), 1)[2] == ""


def test_a_rank_that_stopped_on_request_reports_that_and_exits_with_0(run):
    stops = "from hetero_airflow.contract.notice import Stopped\nraise Stopped(step=4, cause='urgent work')"
    code, end, _ = run(stops)
    assert (code, end.stopped, end.saved_step) == (0, "urgent work", 4)
    code, end, _ = run(f"import sys\nsys.exit({Stopped(step=None, cause='').code})")
    assert (code, end.stopped, end.saved_step) == (0, "exit code 85", None)


def test_a_failure_is_shown_as_python_shows_it_and_reported_with_its_causes(run, tmp_path):
    code, end, output = run("try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('no a') from error")
    assert (code, end.raised) == (1, (("ValueError", "no a"), ("KeyError", "'a'")))
    assert output.endswith("ValueError: no a\n")
    assert "rank_process" not in output
    assert "runpy" not in output


def test_other_exit_codes_are_failures(run):
    code, end, output = run("import sys\nsys.exit('no data')")
    assert (code, end.raised, output) == (1, (("SystemExit", "no data"),), "no data\n")
    assert run("import sys\nsys.exit(3)")[0] == 3


def test_a_rank_that_fails_because_of_a_killed_rank_reports_it(run):
    run("import os\nos.kill(os.getpid(), 9)", 1)
    run("pass", 2)
    _, end, _ = run("raise KeyError('of rank 1')", 0)
    assert end.lost == (1,)


def test_only_the_last_start_of_the_ranks_counts(run, tmp_path):
    run("raise KeyError", 0, 0)
    run("import os\nos.kill(os.getpid(), 9)", 0, 1)
    assert latest_rank_exits(tmp_path) == []


def test_a_rank_whose_torchrun_is_gone_does_not_run(run, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert run("print('runs')")[::2] == (-9, "")
