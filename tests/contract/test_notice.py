import subprocess
import sys

from hetero_airflow.contract.notice import NOTICE, Stopped, give_notice, has_notice, read_notice
from tests.runtime.conftest import GIVEN


def test_a_notice_is_there_once_it_is_given(tmp_path) -> None:
    assert not has_notice(tmp_path)
    assert read_notice(tmp_path) is None
    give_notice(tmp_path, GIVEN)
    assert has_notice(tmp_path)
    assert read_notice(tmp_path) == GIVEN
    assert [path.name for path in tmp_path.iterdir()] == [NOTICE]


def test_without_a_supervisor_there_is_never_a_notice() -> None:
    assert not has_notice(None)
    assert read_notice(None) is None


def test_a_notice_that_cannot_be_read_stops_the_task_too(tmp_path) -> None:
    (tmp_path / NOTICE).touch()
    assert has_notice(tmp_path)
    assert read_notice(tmp_path) is None


def test_stopped_passes_except_exception_and_is_an_exit_code() -> None:
    code = (
        "from hetero_airflow.contract.notice import Stopped\n"
        "try:\n    raise Stopped(step=4, cause='preempted')\n"
        "except Exception:\n    pass\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (85, "", "")


def test_stopped_says_what_is_kept() -> None:
    assert str(Stopped(step=4, cause="preempted")) == "stopped on request (preempted); the checkpoint of step 4 is kept"
    assert str(Stopped(step=None, cause="drained")) == "stopped on request (drained); no checkpoint is kept"
