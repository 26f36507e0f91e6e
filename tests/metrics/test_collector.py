"""The values of the metrics, read back by the parsers of Prometheus' own client."""

from datetime import timedelta

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from hetero_airflow.metrics.catalog import METRICS
from hetero_airflow.metrics.collector import FleetFacts, exposition
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.host_data import CacheCounts
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.scheduling.advice.wanted_workers import wanted_workers
from hetero_airflow.store.sql.tallies import BOUNDS_S, Tally, TallyName
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased

NOW = EPOCH + timedelta(seconds=90)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
LABELS = {metric.name: metric.labels for metric in METRICS} | {
    metric.name + suffix: (*metric.labels, *extra)
    for metric in METRICS
    if metric.kind == "histogram"
    for suffix, extra in (("_bucket", ("le",)), ("_count", ()), ("_sum", ()))
}
HOSTILE = 'rack "7"\\\nhetero_workers 99'


def facts(snapshot: Snapshot, **fields) -> FleetFacts:
    given = {"last_seen": {}, "telemetry": {}, "reasons": {}, "now": NOW} | fields
    return FleetFacts(snapshot, wanted_workers(snapshot), **given)


def values(given: FleetFacts, *, per_device: bool = True) -> dict[tuple[str, ...], float]:
    """(metric, values of its labels…) → value, from the text of a scrape."""
    text, _ = exposition(given, "", per_device=per_device)
    samples = [sample for family in parse_text(text.decode()) for sample in family.samples]
    return {(sample.name, *map(sample.labels.get, LABELS[sample.name])): sample.value for sample in samples}


@pytest.fixture
def fleet() -> Snapshot:
    """A worker with a leased half of one of two GPUs and a hold, a lost worker, and a request that waits for 90 s."""
    devices = (a_cpu(), a_device("GPU-0"), a_device("GPU-1", leasable=False, problem="hot"))
    workers = (a_worker(devices=devices), a_worker("lost", devices=(a_device(),), state=WorkerState.LOST))
    hold = Hold("worker-a", "GPU-1", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it")
    snapshot = Snapshot(1, workers=workers, pending=(a_pending("waits", "h100"),), holds=(hold,))
    return leased(snapshot, (a_lease("runs", **{"GPU-0": 500}), a_pending("runs", "gpu:0.5")))


def test_the_wait_of_a_paused_request_is_no_long_wait():
    pending = (a_pending("paused", is_paused=True), a_pending("waits", at_s=60))
    assert values(facts(Snapshot(1, pending=pending)))["hetero_oldest_request_wait_seconds",] == 30


def test_a_scrape_shows_the_fleet(fleet):
    model = ("nvidia", "gpu", "a100-sxm4-40gb")
    telemetry = {("worker-a", "GPU-0"): Telemetry(device_id="GPU-0", utilization=0.25, power_w=70)}
    seen = values(facts(fleet, telemetry=telemetry, last_seen={"worker-a": EPOCH}, reasons={"model": 1}))
    assert seen["hetero_workers", "local", "online"] == seen["hetero_workers", "local", "lost"] == 1
    assert seen["hetero_worker_last_seen_timestamp_seconds", "worker-a"] == EPOCH.timestamp()
    assert seen["hetero_capacity_devices", *model] == 3, "the CPU is none"
    assert seen["hetero_leasable_devices", *model] == 1, "one has a problem, and one is lost"
    assert seen["hetero_leased_devices", *model] == 0.5
    assert seen["hetero_holds", "drained"] == 1
    assert seen["hetero_requests_waiting", "model"] == 1
    assert seen["hetero_requests_unservable",] == 1
    assert seen["hetero_oldest_request_wait_seconds",] == 90
    assert seen["hetero_device_leased_ratio", "worker-a", "GPU-0"] == 0.5
    assert seen["hetero_device_leasable", "worker-a", "GPU-1"] == 0
    assert seen["hetero_device_utilization_ratio", "worker-a", "GPU-0"] == 0.25
    assert ("hetero_device_temperature_celsius", "worker-a", "GPU-0") not in seen, "no reading is no value"


def test_what_the_caches_of_hosts_have_saved_is_shown_by_worker(fleet):
    counts = CacheCounts(hits=3, misses=1, read_bytes=100, read_s=2, saved_bytes=300, saved_s=6.5)
    seen = values(facts(fleet, data_counts={"worker-a": counts}), per_device=False)
    shown = {name: value for (name, *_), value in seen.items() if name.startswith("hetero_data_cache_")}
    assert shown == {
        "hetero_data_cache_hits_total": 3,
        "hetero_data_cache_read_bytes_total": 100,
        "hetero_data_cache_saved_bytes_total": 300,
        "hetero_data_cache_saved_seconds_total": 6.5,
    }
    assert not [name for name, *_ in values(facts(fleet)) if name.startswith("hetero_data_cache_")]


def test_the_last_decision_is_that_of_the_scheduler_which_decided_last(fleet):
    seen = values(facts(fleet, decided={"host-a:1": EPOCH, "host-b:1": NOW}))
    assert seen["hetero_last_decision_timestamp_seconds",] == NOW.timestamp()
    assert seen["hetero_scheduler_last_decision_timestamp_seconds", "host-a:1"] == EPOCH.timestamp()
    assert "hetero_last_decision_timestamp_seconds" not in str(values(facts(fleet)).keys()), "never is no time"


def test_a_scrape_without_devices_has_the_sums_only(fleet):
    names = {name for name, *_ in values(facts(fleet), per_device=False)}
    assert "hetero_leased_devices" in names
    assert not [name for name in names if name.startswith("hetero_device_")]


def test_the_last_readings_of_a_lost_worker_are_not_shown(fleet):
    telemetry = {("lost", "GPU-0"): Telemetry(device_id="GPU-0", utilization=1)}
    assert ("hetero_device_utilization_ratio", "lost", "GPU-0") not in values(facts(fleet, telemetry=telemetry))


MODEL = ("nvidia", "gpu", "a100-sxm4-40gb")


def test_what_was_counted_is_shown_by_model_outcome_and_reason():
    label = "/".join(MODEL)
    tallies = (
        Tally(TallyName.WAITED, label, "5", 2, 7500),
        Tally(TallyName.WAITED, label, "+Inf", 1, 700_000_000),
        Tally(TallyName.WAITED, "//", "1", 4, 10),
        Tally(TallyName.HELD, label, "30", 1, 20_250),
        Tally(TallyName.ENDED, "paused", "", 5, 0),
        Tally(TallyName.PREEMPTED, "", "", 6, 0),
        Tally(TallyName.REFUSED, "model", "", 7, 0),
        Tally(TallyName.LOADED, label, "", 9, 1500),
    )
    seen = values(facts(Snapshot(1), tallies=tallies))
    assert (seen["hetero_placements_total", *MODEL], seen["hetero_placements_total", "", "", ""]) == (3, 4)
    assert seen["hetero_leases_ended_total", "paused"] == 5
    assert seen["hetero_preemptions_total",] == 6
    assert seen["hetero_refusals_total", "model"] == 7
    assert seen["hetero_step_time_seconds_total", *MODEL, "data"] == 1.5
    waits = "hetero_request_wait_seconds"
    buckets = [seen[f"{waits}_bucket", *MODEL, bound] for bound in ("1.0", "5.0", "15.0", "604800.0", "+Inf")]
    assert (buckets, seen[f"{waits}_count", *MODEL], seen[f"{waits}_sum", *MODEL]) == ([0, 2, 2, 2, 3], 3, 700_007.5)
    assert seen["hetero_lease_duration_seconds_bucket", *MODEL, "15.0"] == 0
    assert seen["hetero_lease_duration_seconds_bucket", *MODEL, "30.0"] == 1
    assert seen["hetero_lease_duration_seconds_sum", *MODEL] == 20.25


def test_a_counter_is_0_before_the_first_event(fleet):
    """Prometheus sees an increase only between two scrapes."""
    seen = values(facts(fleet))
    for outcome in (*RunEnd, "unknown"):
        assert seen["hetero_leases_ended_total", outcome] == 0
    assert seen["hetero_preemptions_total",] == seen["hetero_refusals_total", "memory"] == 0
    assert seen["hetero_placements_total", *MODEL] == seen["hetero_request_wait_seconds_count", *MODEL] == 0
    assert [seen["hetero_step_time_seconds_total", *MODEL, on] for on in ("data", "compute", "save")] == [0, 0, 0]


def test_the_size_of_a_scrape_does_not_grow_with_what_was_counted(fleet):
    counted = tuple(Tally(TallyName.WAITED, "/".join(MODEL), str(bound), 10**9, 10**15) for bound in BOUNDS_S)
    assert len(values(facts(fleet, tallies=counted))) == len(values(facts(fleet)))


def test_a_hostile_name_stays_one_value_of_a_label(fleet):
    worker = a_worker(HOSTILE, devices=(a_device(HOSTILE),))
    seen = values(facts(Snapshot(1, workers=(worker,)), last_seen={HOSTILE: EPOCH}))
    assert seen["hetero_workers", "local", "online"] == 1
    assert seen["hetero_device_leasable", HOSTILE, HOSTILE] == 1


def test_both_formats_have_the_type_and_the_text_of_each_metric(fleet):
    for accept, parse in (("", parse_text), (OPENMETRICS, parse_openmetrics)):
        text, content_type = exposition(facts(fleet), accept, per_device=True)
        assert content_type.startswith(accept.partition(";")[0] or "text/plain")
        documented = {family.name: family.documentation for family in parse(text.decode())}
        for metric in METRICS:
            base = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            assert metric.text in (documented.get(base), documented.get(base.removesuffix("_info"))), metric.name


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_and_texts_follow_the_rules_of_prometheus(metric):
    """https://prometheus.io/docs/practices/naming/, and what promtool refuses."""
    assert metric.name.startswith("hetero_")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.endswith("_info") == (metric.kind == "info")
    assert not {"milli", "ms", "bytes_total", "percent"} & set(metric.name.split("_"))
    assert metric.text.endswith(".")
    assert not {"dag", "run", "task"} & set(metric.labels), "each value is a time series"
