"""What a user reads on a terminal, in a pipe and as JSON.

Whatever others call their tasks, workers and labels: it can neither colour nor break it.
"""

import io
import json
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_airflow.cli import output
from hetero_airflow.cli.output import PIPE_WIDTH, cell, clean, clean_all, console, show, show_json, table
from hetero_airflow.cli.requests.explain import explain_report, history_json
from hetero_airflow.cli.requests.queue import queue_entries, queue_json, queue_report
from hetero_airflow.cli.setup.checks import Finding, check_report
from hetero_airflow.cli.workers.devices import device_report
from hetero_airflow.cli.workers.workers import worker_report, workers_json
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import (
    Account,
    AlternativeAccount,
    CandidateAccount,
    Place,
    Plan,
    Reason,
    ReasonCode,
    Wait,
)
from hetero_airflow.model.worker import Inventory
from hetero_airflow.store.codec import decision_columns, decision_json
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestHistory, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker


@given(st.text())
def test_clean_text_is_printable_and_keeps_what_was_printable(text):
    cleaned = clean(text)
    assert cleaned.isprintable()
    if text.isprintable():
        assert cleaned == text


def test_clean_all_reaches_keys_and_nested_values():
    assert clean_all({"a\n": ["\x1b", {"b": ("\u202e", 1, None, True)}]}) == {
        "a\\n": ["\\x1b", {"b": ["\\u202e", 1, None, True]}]
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_markup_and_emoji_codes_stay_text_on_a_colour_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = Terminal()
    console(file).print(cell("[red]x[/red] :smile: 42 '/a/b'"))
    assert file.getvalue() == "[red]x[/red] :smile: 42 '/a/b'\n"
    file = Terminal()
    console(file).print(cell("ours", style="red"))
    assert file.getvalue() == "\x1b[31mours\x1b[0m\n"


def test_a_pipe_gets_no_colour_and_a_fixed_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    file = io.StringIO()
    made = console(file)
    made.print(cell("ours", style="red"))
    assert (made.width, file.getvalue()) == (PIPE_WIDTH, "ours\n")


def test_a_file_that_can_hold_ascii_only_gets_escapes():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console(file).print(cell("2 × gpu"))
    file.seek(0)
    assert file.read() == "2 \\xd7 gpu\n"


def test_lines_of_text_are_never_broken(render):
    assert render([cell("word " * 50)], width=20) == ("word " * 50).rstrip()


def test_a_table_breaks_long_cells_but_loses_nothing(render):
    rows = [(cell("an-id-that-is-longer-than-the-width-0123456789"), cell("short words", "GPU-0123456789-0123456789"))]
    assert render([table(("ID", "REST"), rows, whole=0)], width=40) == "\n".join(
        (
            "ID                                              REST",
            "an-id-that-is-longer-than-the-width-0123456789  short words",
            "                                                GPU-01234567",
            "                                                89-012345678",
            "                                                9",
        )
    )


def test_a_table_of_empty_headers_has_no_header(render):
    assert render([table(("", ""), [(cell("a"), cell("b"))])]) == "a  b"


def test_an_empty_table_is_its_header(render):
    assert render([table(("A", "B"), [], whole=0)]) == "A  B"


@pytest.mark.parametrize("value", [{"a": ["[red]\x1b[31m", "ä" * 200, None]}, [], 1.5])
def test_json_is_printed_whole_and_in_ascii(capsys, monkeypatch, value):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    show_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert text.isascii()
    assert "\x1b" not in text


def test_several_parts_are_printed_in_order(render):
    assert render([cell("a", "b"), cell(""), cell("c")]) == "a\nb\n\nc"
    show()


HOSTILE = st.one_of(
    st.sampled_from(
        ["[red]", "[/]", "\x1b[31m", "\x1b]0;t\x07", "a\nb", "\r", "\x9b31m", "\u202e", ":smile:", "[link=x]"]
    ),
    st.text(st.characters(codec="utf-8", min_codepoint=0), min_size=1, max_size=40),
).filter(lambda name: not name.startswith("!"))  # a request reads it as the negation of a label
NOW = EPOCH + timedelta(hours=1)


def what_is_printed(name: str) -> tuple[list[object], list[object]]:
    """Every report on a world where all names are `name`, as parts and as JSON values."""
    device = a_device(name, driver=name, capability=name, pci=name, peers=(name, f"{name}2"), problem=name)
    worker = a_worker(name, (a_cpu(), device), host=f"{name}h", labels={name: name}, runtime={name: name}, engine=name)
    store = MemoryStore()  # a database has no names with NUL
    ids = {"dag_id": name, "run_id": name}
    pending = [a_pending(name, "a100:0.5", labels={name[:9]: name}, **ids), a_pending(f"{name}w", "a100:2", **ids)]
    store.record([WorkerSeen(worker), *map(RequestSubmitted, pending)], EPOCH)
    reason = Reason(ReasonCode.BUSY, name, name)
    accounts = (AlternativeAccount(name, 1, ((1, reason),), (CandidateAccount(name, (name,), 1.0, {name: 1.0}),)),)
    account = Account(name, name, accounts)
    place = Place(name, name, 0, (Claim(device_id=name, share_milli=500, memory_bytes=5),), account)
    plan = Plan((place, Wait(f"{name}w", 1, reason, account)))
    leases = store.commit(plan, EPOCH, NOW).leases
    assert leases
    snapshot = store.snapshot()
    queue = queue_entries(snapshot, plan)
    placed = {name: pending[0]}
    stories = zip(pending, ("placed", "waiting"), (leases, ()), plan.decisions, strict=True)
    histories = [
        RequestHistory(request, state, None, "", held, (decision_json(decision_columns(decision), EPOCH),))
        for request, state, held, decision in stories
    ]
    seen = {name: EPOCH}
    inventory = Inventory(worker=worker, problems=(name,))
    parts = [
        *device_report(inventory),
        *worker_report(snapshot, seen, {}, NOW, 60),
        *queue_report(queue, snapshot, placed, NOW),
        *(part for history in histories for part in explain_report(history, {name: worker}, NOW)),
        *check_report([Finding(name, name, name, name)]),
    ]
    values = [
        workers_json(snapshot, seen, {}),
        queue_json(queue, snapshot, placed),
        *map(history_json, histories),
    ]
    return parts, values


def lines_printed(monkeypatch, name: str, width: int) -> list[str]:
    file = Terminal()
    with monkeypatch.context() as patch:
        for variable, value in {"TERM": "xterm", "COLUMNS": str(width), "NO_COLOR": "1"}.items():
            patch.setenv(variable, value)
        patch.setattr("sys.stdout", file)
        parts, values = what_is_printed(name)
        output.show(*parts)
        for value in values:
            output.show_json(value)
    return file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").split("\n")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=HOSTILE)
def test_no_name_colours_or_breaks_the_output(monkeypatch, name):
    lines = lines_printed(monkeypatch, name, 120)
    assert all(line.isprintable() for line in lines)
    assert f"Worker {output.clean(name)}: 1 accelerator to lease" in lines
    assert f"Problem: {output.clean(name)}" in lines


@settings(max_examples=60, deadline=None)
@given(name=HOSTILE)
def test_json_gives_the_name_back_unchanged(name):
    _, values = what_is_printed(name)
    workers, queue, placed, waiting = json.loads(json.dumps(values))
    assert workers[0]["id"] == name
    assert [each["task_id"] for each in queue["waiting"]] == [f"{name}w"]
    assert (placed["pending"]["dag_id"], waiting["pending"]["run_id"]) == (name, name)
