"""The spans of waits and leases are children of the span that Airflow's own code emits for the try."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow._shared.observability.traces import OverrideableRandomIdGenerator
from airflow.api_fastapi.execution_api.routes import task_instances as airflow_routes
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import StatusCode

from hetero_airflow.executor.airflow_db.task_instances import TaskProcess
from hetero_airflow.executor.leases.spans import airflow_tracer
from tests.sqlite_store import SqliteStore

TRACE, RUN_SPAN, TRY_SPAN = "0af7651916cd43dd8448eb211c80319c", "1111111111111111", "b7ad6b7169203331"


def carrier(span_id: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{span_id}-{flags}"}


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    """A tracer as Airflow configures it, but with an exporter in memory, and a sampler that ignores the parent."""
    provider = TracerProvider(id_generator=OverrideableRandomIdGenerator(), sampler=ALWAYS_ON)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test")


def run_a_task(bench, try_carrier, state="success"):
    """A task waits for 3 s, and holds a device until its end 11 s later; the times of grant and end."""
    id_ = bench.hold("train", "gpu")
    workload = bench.queued["train"].workload
    workload.ti.context_carrier = try_carrier
    bench.tasks.trace_carrier = {id_: try_carrier}.get
    bench.beat(3)
    granted_at = bench.clock.now()
    lease = bench.lease(id_)
    bench.run(id_)
    bench.beat(1)
    bench.tasks.rows[id_] = TaskProcess(state)
    bench.finish(workload.key)
    bench.beat(10)
    assert lease.id not in {known.id for known in bench.store.snapshot().leases}
    return granted_at, bench.clock.now()


def test_the_spans_join_airflows_own_trace(bench, exporter, tracer, monkeypatch):
    bench.commands.spans.tracer = tracer
    queued_at = bench.clock.now() + timedelta(seconds=0.001)
    granted_at, ended_at = run_a_task(bench, carrier(TRY_SPAN))
    monkeypatch.setattr(airflow_routes, "tracer", tracer)
    ti = SimpleNamespace(
        id="1", dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1,
        context_carrier=carrier(TRY_SPAN), dag_run=SimpleNamespace(context_carrier=carrier(RUN_SPAN)),
        queued_dttm=queued_at, start_date=granted_at,
    )  # fmt: skip
    airflow_routes._emit_task_span(ti, "success")
    wait, lease, of_airflow = exporter.get_finished_spans()
    assert [span.name for span in (wait, lease, of_airflow)] == ["hetero.wait", "hetero.lease", "task_run.train"]
    for span in (wait, lease):
        assert span.context.trace_id == of_airflow.context.trace_id == int(TRACE, 16)
        assert span.parent.span_id == of_airflow.context.span_id == int(TRY_SPAN, 16)
        shared = {name: value for name, value in span.attributes.items() if name.startswith("airflow.")}
        assert shared.items() <= of_airflow.attributes.items()
        assert (span.attributes["hetero.worker"], span.attributes["hetero.devices"]) == ("worker-a", ("GPU-0",))

    def nanoseconds(*times):
        return [int(time.timestamp() * 1e9) for time in times]

    assert [wait.start_time, wait.end_time] == nanoseconds(queued_at, granted_at)
    assert [lease.start_time, lease.end_time] == nanoseconds(granted_at, ended_at)
    assert wait.attributes["hetero.model"] == "a100-sxm4-40gb"
    assert (lease.attributes["hetero.outcome"], lease.status.status_code) == ("finished", StatusCode.UNSET)


def test_the_lease_of_a_failed_task_is_an_error(bench, exporter, tracer):
    bench.commands.spans.tracer = tracer
    run_a_task(bench, carrier(TRY_SPAN), "failed")
    _, lease = exporter.get_finished_spans()
    assert (lease.attributes["hetero.outcome"], lease.status.status_code) == ("failed", StatusCode.ERROR)


@pytest.mark.parametrize("odd", [None, {}, {"hetero": "lease"}, {"traceparent": "nonsense"}, carrier(TRY_SPAN, "00")])
def test_without_a_span_of_airflow_or_a_sample_of_it_there_is_none_of_ours(bench, exporter, tracer, odd):
    bench.commands.spans.tracer = tracer
    run_a_task(bench, odd)
    assert exporter.get_finished_spans() == ()


def test_without_traces_nothing_is_asked_of_the_database(bench, monkeypatch):
    assert airflow_tracer() is None
    assert isinstance(bench.store, SqliteStore)
    assert bench.commands.spans.tracer is None
    monkeypatch.setattr(bench.tasks, "trace_carrier", lambda id_: 1 / 0, raising=False)
    id_ = bench.hold("train", "gpu")
    bench.beat(1)
    bench.tasks.rows[id_] = TaskProcess("success")
    bench.end("train")
    bench.beat(10)
    assert not bench.store.snapshot().leases


def test_traces_are_on_with_airflows_own_setting(monkeypatch):
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")
    assert airflow_tracer() is not None
