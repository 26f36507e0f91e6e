import os
import resource
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from hetero_airflow.contract.rendering import render_arguments, run_context
from hetero_airflow.errors import RequestError
from hetero_airflow.executor.templates import render_process, renderer
from hetero_airflow.executor.templates.renderer import TemplateRenderer, pack_context
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.testing import EPOCH

CONTEXT = run_context("dag", "run", EPOCH, EPOCH, {"n": 2, "kind": "gpu"}, {"kind": "a100"})
LOOP = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}gpu"


@pytest.fixture
def templates():
    templates = TemplateRenderer()
    yield templates
    templates.close()


def result_of(templates, id_, longest_s=30.0):
    """The request or the error of a job, as soon as it is there."""
    until = time.monotonic() + longest_s
    while templates.knows(id_):
        assert time.monotonic() < until
        templates.poll()
        try:
            if (request := templates.take(id_)) is not None:
                return request
        except RequestError as error:
            return error
        time.sleep(0.01)
    raise AssertionError(f"no job {id_}")


def submit(templates, id_, dag_id="dag", context=CONTEXT, **arguments):
    templates.submit(id_, dag_id, arguments, pack_context(context))


@pytest.mark.parametrize(
    "arguments",
    [
        {"device": "{{ params.kind }}:{{ params.n }}"},
        {"device": {"{{ params.kind }}"}, "wait_timeout": timedelta(hours=2)},
        {"device": ("gpu", {"device": "cpu:{{ params.n * 4 }}"}), "labels": {"day": "{{ ds | replace('-', '') }}"}},
        {"device": "gpu", "labels": {"month": "{{ logical_date.strftime('%m') }}", "run": "{{ dag_run.run_id }}"}},
        {"device": "{{ ['gpu', 'npu'] | join(',') if not params else 'gpu' | upper | lower }}", "priority": "high"},
        {"device": "gpu", "data": ["s3://lake/day={{ ds }}/", "s3://lake/labels.csv"]},
        {"device": "{% if dag_run.conf.kind %}gpu:{{ range(5) | sum }}{% else %}cpu{% endif %}"},
    ],
)
def test_the_process_renders_what_the_command_line_renders(templates, arguments):
    submit(templates, "a", **arguments)
    assert result_of(templates, "a") == render_arguments(arguments, CONTEXT)


@pytest.mark.parametrize("device", ["{{ no }}", "gpu:-{{ params.n }}", "{{ 1 / 0 }}", "{{ ''.__class__.__mro__ }}"])
def test_an_error_is_the_same_in_the_process(templates, device):
    submit(templates, "a", device=device)
    with pytest.raises(RequestError) as caught:
        render_arguments({"device": device}, CONTEXT)
    error = result_of(templates, "a")
    assert (str(error), error.__dict__) == (str(caught.value), caught.value.__dict__)


def test_the_result_of_equal_jobs_goes_to_all_of_them_and_is_taken_once(templates):
    for id_ in "abc":
        submit(templates, id_, device="gpu:{{ params.n }}")
    assert [result_of(templates, id_) for id_ in "abc"] == [DeviceRequest.parse("gpu:2")] * 3
    assert [templates.knows(id_) for id_ in "abc"] == [False] * 3


def test_a_process_is_sent_few_jobs_at_a_time_and_all_are_rendered(templates, monkeypatch):
    monkeypatch.setattr(renderer, "_MAX_SENT", 3)
    for number in range(1, 11):
        submit(templates, str(number), device=f"gpu:{{{{ {number} }}}}")
        assert templates._sent <= 3
    results = [result_of(templates, str(number)) for number in range(1, 11)]
    assert results == [DeviceRequest.parse(f"gpu:{number}") for number in range(1, 11)]


def test_jobs_of_a_process_that_was_killed_go_to_the_next_one(templates, monkeypatch, caplog):
    monkeypatch.setattr(renderer, "_MAX_DELAY_S", 0.1)
    submit(templates, "slow", device=LOOP)
    submit(templates, "quick", device="gpu:{{ params.n }}", dag_id="another")
    os.kill(templates._process.pid, signal.SIGKILL)
    assert result_of(templates, "quick") == DeviceRequest.parse("gpu:2")
    assert "1 s of CPU time" in str(result_of(templates, "slow"))
    assert "2 tasks wait for it" in caplog.text


def test_a_process_that_gives_no_answer_is_replaced(templates, monkeypatch):
    monkeypatch.setattr(renderer, "_MAX_DELAY_S", 0.1)
    submit(templates, "first", device="gpu:{{ params.n }}")
    result_of(templates, "first")
    frozen = templates._process.pid
    os.kill(frozen, signal.SIGSTOP)
    submit(templates, "second", device="cpu:{{ params.n }}")
    monkeypatch.setattr(renderer, "_STALL_S", 0.0)
    time.sleep(0.01)
    templates.poll()
    monkeypatch.setattr(renderer, "_STALL_S", 60.0)
    assert result_of(templates, "second") == DeviceRequest.parse("cpu:2")
    assert templates._process.pid != frozen


def test_a_process_whose_answer_can_not_be_read_is_replaced(templates, monkeypatch, caplog):
    monkeypatch.setattr(renderer, "_MAX_DELAY_S", 0.1)
    submit(templates, "a", device="gpu:{{ params.n }}")
    templates._input += b"[" * 100_000 + b"\n"
    templates.poll()
    assert "can't be read" in caplog.text
    assert result_of(templates, "a") == DeviceRequest.parse("gpu:2")


def test_a_process_that_can_not_start_costs_a_warning_and_the_task_waits(templates, monkeypatch, caplog):
    monkeypatch.setattr(renderer, "_MAX_DELAY_S", 0.1)
    monkeypatch.setattr(renderer, "COMMAND", ("/nowhere/python",))
    submit(templates, "a", device="gpu:{{ params.n }}")
    assert "No such file" in caplog.text
    monkeypatch.undo()
    assert result_of(templates, "a") == DeviceRequest.parse("gpu:2")


def test_a_large_conf_and_values_that_are_no_json_are_refused():
    with pytest.raises(RequestError, match="KiB of params and conf"):
        pack_context({"params": {"text": "x" * 1_000_000}})
    with pytest.raises(RequestError, match="that are no JSON"):
        pack_context({"params": {"function": lambda: None}})


def test_results_that_are_never_read_are_dropped(templates, monkeypatch):
    submit(templates, "a", device="gpu:{{ params.n }}")
    until = time.monotonic() + 600
    while not templates.has_news and time.monotonic() < until:
        time.sleep(0.01)
        templates.poll()
    assert templates.knows("a")
    monkeypatch.setattr(renderer, "_KEEP_S", -1.0)
    templates.poll()
    assert not templates.knows("a")


def test_a_template_can_not_take_all_memory(templates):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    doubling = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}"
    submit(templates, "a", device=doubling)
    assert "MiB of memory" in str(result_of(templates, "a"))
    templates.close()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before < 2 * render_process.MEMORY_BYTES >> 10


def test_the_process_gets_no_secret_and_loads_no_airflow(monkeypatch, templates):
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "hushed")
    submit(templates, "a", device="gpu:{{ params.n }}")
    result_of(templates, "a")
    with open(f"/proc/{templates._process.pid}/environ", "rb") as file:
        assert b"hushed" not in file.read()
    code = f"import {render_process.__name__}, sys; print(sorted({{'airflow', 'sqlalchemy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_process_ends_with_its_parent():
    """Also while a fork of the parent, such as a worker of LocalExecutor, has its input open."""
    code = (
        "import os, signal, time\n"
        "from hetero_airflow.executor.templates.renderer import TemplateRenderer, pack_context\n"
        "templates = TemplateRenderer()\n"
        "templates.submit('a', 'dag', {'device': '{{ 1 }}'}, pack_context({}))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    time.sleep(60); os._exit(0)\n"
        "print(templates._process.pid, pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid, fork = map(int, parent.stdout.readline().split())
    parent.stdout.close()
    parent.wait()
    until = time.monotonic() + 600
    while _is_alive(pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _is_alive(pid)
    os.kill(fork, signal.SIGKILL)


def _is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
