"""Whatever others call their tasks, workers and labels: it can neither colour nor break what a user reads."""

from __future__ import annotations

import io
import json
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_airflow.cli import output
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
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker

HOSTILE = st.one_of(
    st.sampled_from(
        ["[red]", "[/]", "\x1b[31m", "\x1b]0;t\x07", "a\nb", "\r", "\x9b31m", "\u202e", ":smile:", "[link=x]"]
    ),
    st.text(st.characters(codec="utf-8", min_codepoint=0), min_size=1, max_size=40),
).filter(lambda name: not name.startswith("!"))  # a request reads it as the negation of a label
NOW = EPOCH + timedelta(hours=1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def what_is_printed(name: str) -> tuple[list[object], list[object]]:
    """Every report on a world where all names are `name`, as parts and as JSON values."""
    device = a_device(name, driver=name, capability=name, pci=name, peers=(name, f"{name}2"), problem=name)
    worker = a_worker(name, (a_cpu(), device), host=f"{name}h", labels={name: name}, runtime={name: name}, engine=name)
    store = MemoryStore()
    ids = {"dag_id": name, "run_id": name}
    pending = [a_pending(name, "a100:0.5", labels={name[:9]: name}, **ids), a_pending(f"{name}w", "a100:2", **ids)]
    store.record([WorkerSeen(worker), *map(RequestSubmitted, pending)], EPOCH)
    reason = Reason(ReasonCode.BUSY, name, name)
    accounts = (AlternativeAccount(name, 1, ((1, reason),), (CandidateAccount(name, (name,), 1.0, {name: 1.0}),)),)
    account = Account(name, name, accounts)
    place = Place(name, name, 0, (Claim(device_id=name, share_milli=500, memory_bytes=5),), account)
    plan = Plan((place, Wait(f"{name}w", 1, reason, account)))
    assert store.commit(plan, EPOCH, NOW).leases
    snapshot = store.snapshot()
    queue = queue_entries(snapshot, plan)
    placed = {name: pending[0]}
    histories = [store.request_history(name, name, task_id) for task_id in (name, f"{name}w")]
    inventory = Inventory(worker=worker, problems=(name,))
    parts = [
        *device_report(inventory),
        *worker_report(snapshot, store.last_seen(), store.heartbeats(), NOW, 60),
        *queue_report(queue, snapshot, placed, NOW),
        *(part for history in histories for part in explain_report(history, {name: worker}, NOW)),
        *check_report([Finding(name, name, name, name)]),
    ]
    values = [
        workers_json(snapshot, store.last_seen(), {}),
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
