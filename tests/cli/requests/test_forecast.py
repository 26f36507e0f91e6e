import json
from dataclasses import replace
from datetime import timedelta

import pytest

from hetero_airflow.cli.requests.explain import explain_report, forecast_json, start_lines
from hetero_airflow.executor.explanation.forecast import Forecast, forecast_start
from hetero_airflow.model.estimates import NO_ESTIMATES, Estimates, Interval
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.scheduling.advice.start_estimate import StartEstimate
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn, WorkerSeen
from hetero_airflow.testing import EPOCH, FakeEngine, a_cpu, a_device, a_pending, a_worker
from tests.sqlite_store import SqliteStore

NOW = EPOCH + timedelta(seconds=60)
A100 = "nvidia/a100-sxm4-40gb"


@pytest.fixture
def store():
    """One of two A100 is leased to "runs", so that "waits", which asks for both, waits."""
    store = SqliteStore()
    worker = a_worker(devices=(a_cpu(), a_device("GPU-0"), a_device("GPU-1", index=1)))
    store.record(
        [WorkerSeen(worker), RequestSubmitted(a_pending("runs")), RequestSubmitted(a_pending("waits", "a100:2"))], EPOCH
    )
    Cycle(store, Fifo(), FakeEngine(), 3600).run(EPOCH)
    return store


def forecast_of(store, estimates=NO_ESTIMATES, task_id="waits") -> Forecast:
    request_history = store.request_history("dag", "run", task_id)
    forecast = forecast_start(request_history, replace(store.snapshot(), estimates=estimates), Fifo().decide, NOW, None)
    assert forecast is not None
    return forecast


def parts(render, store, forecast, task_id="waits", width=120) -> list[list[str]]:
    """What is printed after the first rows, block by block."""
    text = render(explain_report(store.request_history("dag", "run", task_id), {}, NOW, forecast), width)
    first, *rest = [block.splitlines() for block in text.split("\n\n")]
    return [first[4:], *rest]


def test_a_waiting_task_has_its_start_and_what_would_start_it_now(render, store):
    known = Estimates({("dag", "runs"): {A100: 1.0}}, {("dag", "runs"): Interval(600, 600, 600)})
    assert parts(render, store, forecast_of(store, known))[:2] == [
        [
            "Waiting    at position 1 of the queue",
            "           busy: asked 2 × nvidia/a100, found 1 of 2 free (worker worker-a)",
            "Starts     in about 9 min, at 2026-01-01 00:10:00 UTC",
        ],
        [
            "It would start now, on worker-a, with 1 × nvidia/a100 as one more choice, about 2 times as long:",
            '  device=["nvidia/a100:2", "nvidia/a100"]',
        ],
    ]


def test_the_text_for_the_dag_file_is_never_broken(render, store):
    assert '  device=["nvidia/a100:2", "nvidia/a100"]' in parts(render, store, forecast_of(store), width=30)[1]


def test_an_unknown_start_is_reported_as_unknown(render, store):
    assert parts(render, store, forecast_of(store))[0][-1] == (
        "Starts     unknown: it may wait for dag.runs, and their durations are unknown"
    )


def test_a_refused_task_has_only_what_would_start_it(render, store):
    store.record([RequestWithdrawn("waits", ""), RequestSubmitted(a_pending("refused", "h100"))], EPOCH)
    Cycle(store, Fifo(), FakeEngine(), 3600).run(EPOCH)
    first, answer, _ = parts(render, store, forecast_of(store, task_id="refused"), "refused")
    assert [line for line in first if line.startswith("Starts")] == []
    assert answer == [
        f"It would start now, on worker-a, with 1 × {A100} as one more choice:",
        f'  device=["nvidia/h100", "{A100}"]',
    ]


@pytest.mark.parametrize(
    ("estimate", "lines"),
    [
        (StartEstimate(Interval(0, 0, 0)), ["now: the scheduler's next cycle places it"]),
        (
            StartEstimate(Interval(30, 600, 7290)),
            ["in about 10 min; with a probability of 80 % in 30 s to 2 h 1 min"],
        ),
        (
            StartEstimate(Interval(60, 60, 60), (("d", "a"), ("d", "b"))),
            ["in about 1 min, at 2026-01-01 00:02:00 UTC", "or sooner: the durations of d.a, d.b are unknown"],
        ),
        (
            StartEstimate(beyond_s=5400.0),
            ["not in less than 1 h 30 min; the queue before it is too long for a forecast"],
        ),
        (StartEstimate(), ["unknown: it does not start even when all running tasks have ended"]),
    ],
)
def test_a_start_is_described_for_people(estimate, lines):
    assert list(start_lines(estimate, NOW)) == lines


def test_a_request_that_no_change_helps_says_so(render, store):
    assert parts(render, store, Forecast(StartEstimate(), None))[1] == [
        "No single change of the request would start it now"
    ]


def test_placed_and_withdrawn_requests_have_no_forecast(store):
    store.record([RequestWithdrawn("waits", "")], NOW)
    for name in ("runs", "waits"):
        assert (
            forecast_start(store.request_history("dag", "run", name), store.snapshot(), Fifo().decide, NOW, None)
            is None
        )


def test_a_request_that_starts_now_needs_no_change(store):
    store.record([RequestSubmitted(a_pending("small", "cpu:2"))], NOW)
    forecast = forecast_of(store, task_id="small")
    assert (forecast.starts_now, forecast.change) == (True, None)


def test_json_has_the_numbers_and_the_request(store):
    known = Estimates({("dag", "runs"): {A100: 1.0}}, {("dag", "runs"): Interval(300, 600, 1200)})
    document = json.loads(json.dumps(forecast_json(forecast_of(store, known))))
    start_s = document["outlook"].pop("start_s")
    assert 0 < start_s["low"] < start_s["middle"] < start_s["high"]
    assert document["outlook"] == {"unknown": [], "beyond_s": None}
    assert DeviceRequest.model_validate(document["what_if"].pop("request")) == DeviceRequest.parse(["a100:2", "a100"])
    assert document["what_if"] == {
        "words": "with 1 × nvidia/a100 as one more choice, about 2 times as long",
        "arguments": 'device=["nvidia/a100:2", "nvidia/a100"]',
        "cost": 1.0,
        "worker_id": "worker-a",
        "device_ids": ["GPU-1"],
    }
    assert forecast_json(forecast_of(store))["outlook"] == {
        "start_s": None,
        "unknown": [{"dag_id": "dag", "task_id": "runs"}],
        "beyond_s": None,
    }
    assert forecast_json(None) == {"outlook": None, "what_if": None}
