"""What a scrape over HTTP gets of a real database that two schedulers write."""

from datetime import timedelta

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetero_airflow.agent.protocol import PREFIX
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.run import RunEnd
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.tallies import read_tallies
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker

TOKEN = "b5c0a6d3f1e24f7c"
MODEL = {"vendor": "nvidia", "kind": "gpu", "model": "a100-sxm4-40gb"}


@pytest.fixture
def scrape(server, monkeypatch):
    """Scrapes; (metric, value of its last label) → value, of what was counted."""
    monkeypatch.setenv("AIRFLOW__HETERO__METRICS_TOKEN", TOKEN)

    def read() -> dict[tuple[str, str], float]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.get(f"{server.url}{PREFIX}/metrics", headers=headers, timeout=60).raise_for_status()
        families = list(text_string_to_metric_families(answer.text))
        counted = [family for family in families if family.type in ("counter", "histogram")]
        samples = [sample for family in counted for sample in family.samples]
        assert all(MODEL.items() <= sample.labels.items() for sample in samples if "model" in sample.labels)
        return {
            (sample.name, *(sample.labels[name] for name in ("le", "outcome", "reason") if name in sample.labels)): (
                sample.value
            )
            for sample in samples
        }

    return read


def serve(store: SqlStore, name: str, end: RunEnd) -> None:
    """Grant a device to a request after 7 s, and end the lease after 20 s more."""
    store.record([RequestSubmitted(a_pending(name))], EPOCH)
    at = EPOCH + timedelta(seconds=7)
    (lease,) = store.commit(Plan((a_place(name, **{"GPU-0": 1000}),)), at, at).leases
    (ended,) = store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED, end=end)], at + timedelta(seconds=20))
    assert ended.state is LeaseState.RELEASED


def test_two_schedulers_count_in_the_same_counters_which_survive_restarts_and_pruning(engine, scrape):
    first, second = SqlStore(engine), SqlStore(engine)
    first.record([WorkerSeen(a_worker())], EPOCH)
    before = scrape()
    assert set(before.values()) == {0}
    serve(first, "r1", RunEnd.FINISHED)
    serve(second, "r2", RunEnd.FAILED)
    serve(SqlStore(engine), "r3", RunEnd.FINISHED)
    after = scrape()
    assert (after["hetero_placements_total",], after["hetero_request_wait_seconds_count",]) == (3, 3)
    assert after["hetero_leases_ended_total", "finished"] == 2
    assert after["hetero_leases_ended_total", "failed"] == 1
    waits = [after["hetero_request_wait_seconds_bucket", bound] for bound in ("5.0", "15.0", "+Inf")]
    assert (waits, after["hetero_request_wait_seconds_sum",]) == ([0, 3, 3], 21)
    assert after["hetero_lease_duration_seconds_sum",] == 60
    assert first.prune(EPOCH + timedelta(days=9)) == 3
    assert scrape() == after


def test_what_a_scrape_reads_of_the_past_does_not_grow_with_it(engine, scrape):
    sizes = []
    store = SqlStore(engine)
    store.record([WorkerSeen(a_worker())], EPOCH)
    for number in (5, 50):
        for request in range(number):
            serve(store, f"r-{number}-{request}", RunEnd.FINISHED)
        with read_transaction(engine) as connection:
            sizes.append((len(read_tallies(connection)), len(scrape())))
    assert sizes[0] == sizes[1]
    assert sizes[0][0] == 3
