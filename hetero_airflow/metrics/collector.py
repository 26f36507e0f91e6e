"""The values of the metrics at one moment, from what the store knows. Every API server gives the same answer.

The counters and histograms are from the store's tallies: they survive restarts, and all schedulers count in them.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as MetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from hetero_airflow import __version__
from hetero_airflow.metrics.catalog import METRICS, Metric
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.host_data import CacheCounts
from hetero_airflow.model.plan import TRANSIENT, ReasonCode
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.scheduling.advice.wanted_workers import WantedWorkers
from hetero_airflow.store.sql.tallies import (
    NO_BOUND,
    STEP_TIMES,
    UNKNOWN_END,
    Tally,
    TallyName,
    cumulative,
    split_model_label,
)
from hetero_airflow.units import MILLI_PER_DEVICE

Model = tuple[str, str, str]
"""Vendor, kind and model."""

_READINGS = {
    "hetero_device_utilization_ratio": "utilization",
    "hetero_device_memory_free_bytes": "memory_free_bytes",
    "hetero_device_temperature_celsius": "temperature_c",
    "hetero_device_power_watts": "power_w",
    "hetero_device_ecc_errors_total": "ecc_errors",
}
"""Metric → field of `Telemetry`. A device without a reading has no time series; 0 would look like a reading."""

_DATA_COUNTS = {
    "hetero_data_cache_hits_total": "hits",
    "hetero_data_cache_read_bytes_total": "read_bytes",
    "hetero_data_cache_saved_bytes_total": "saved_bytes",
    "hetero_data_cache_saved_seconds_total": "saved_s",
}
"""Metric → field of `CacheCounts`."""


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What the metrics are made of."""

    snapshot: Snapshot
    wanted: WantedWorkers
    last_seen: Mapping[str, datetime]
    """Worker id → time of its last heartbeat."""
    telemetry: Mapping[tuple[str, str], Telemetry]
    """(worker id, device id) → its last readings."""
    reasons: Mapping[str, int]
    """Kind of reason → number of waiting requests."""
    now: datetime
    tallies: Sequence[Tally] = ()
    decided: Mapping[str, datetime] = field(default_factory=dict)
    """Scheduler → the end of its last cycle."""
    data_counts: Mapping[str, CacheCounts] = field(default_factory=dict)
    """Worker id → what was counted of its host's data cache."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with the values of its labels in the order of the catalog."""

    metric: str
    value: float
    labels: tuple[str, ...] = ()


def fleet_samples(facts: FleetFacts) -> Iterator[Sample]:
    """The values for the whole fleet; their number does not grow with the devices."""
    snapshot = facts.snapshot
    yield Sample("hetero_build_info", 1, (__version__,))
    workers = Counter((worker.engine, worker.state.value) for worker in snapshot.workers)
    yield from (Sample("hetero_workers", count, labels) for labels, count in workers.items())
    for worker_id, seen_at in facts.last_seen.items():
        yield Sample("hetero_worker_last_seen_timestamp_seconds", seen_at.timestamp(), (worker_id,))
    if facts.decided:
        yield Sample("hetero_last_decision_timestamp_seconds", max(facts.decided.values()).timestamp())
    for scheduler, decided_at in facts.decided.items():
        yield Sample("hetero_scheduler_last_decision_timestamp_seconds", decided_at.timestamp(), (scheduler,))
    yield from _model_samples(snapshot)
    states = Counter(lease.state.value for lease in snapshot.leases)
    yield from (Sample("hetero_leases", count, (state,)) for state, count in states.items())
    holds = Counter(hold.kind.value for hold in snapshot.holds)
    yield from (Sample("hetero_holds", count, (kind,)) for kind, count in holds.items())
    yield from (Sample("hetero_requests_waiting", count, (reason,)) for reason, count in facts.reasons.items())
    yield Sample("hetero_requests_unservable", facts.wanted.unservable)
    oldest = min((pending.submitted_at for pending in snapshot.pending if not pending.is_paused), default=facts.now)
    yield Sample("hetero_oldest_request_wait_seconds", max(0.0, (facts.now - oldest).total_seconds()))
    yield from (Sample("hetero_wanted_workers", wanted.workers, (wanted.type,)) for wanted in facts.wanted.types)
    yield from counter_samples(facts.tallies, _models(snapshot))
    for worker_id, counts in facts.data_counts.items():
        yield from (Sample(metric, getattr(counts, name), (worker_id,)) for metric, name in _DATA_COUNTS.items())


def device_samples(facts: FleetFacts) -> Iterator[Sample]:
    """The values of each device that is not a CPU."""
    for worker, device in _accelerators(facts.snapshot):
        key = worker.id, device.id
        simulated = "true" if device.simulated else "false"
        description = (*key, *_model(device), device.partition or "", simulated)
        yield Sample("hetero_device_info", 1, description)
        yield Sample("hetero_device_leasable", _can_be_leased(worker, device), key)
        leased = facts.snapshot.used(*key).share_milli / MILLI_PER_DEVICE
        yield Sample("hetero_device_leased_ratio", leased, key)
        telemetry = facts.telemetry.get(key)
        if telemetry is None or worker.state is WorkerState.LOST:
            continue
        for metric, reading in _READINGS.items():
            value = getattr(telemetry, reading)
            if value is not None:
                yield Sample(metric, value, key)


def exposition(facts: FleetFacts, accept: str, *, per_device: bool) -> tuple[bytes, str]:
    """What a scrape gets: the text and its content type.

    :param accept: the header of the scrape, which asks for Prometheus' format or OpenMetrics
    :param per_device: whether to add the time series of each device
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(facts, per_device))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@dataclass(frozen=True, slots=True, eq=False)
class _Families(Collector):
    """The samples, grouped by metric as Prometheus' format wants them."""

    facts: FleetFacts
    per_device: bool

    def collect(self) -> Iterator[MetricFamily]:
        """Each metric of the catalog, also one without a value now."""
        samples: dict[str, list[Sample]] = defaultdict(list)
        for sample in chain(fleet_samples(self.facts), device_samples(self.facts) if self.per_device else ()):
            samples[sample.metric].append(sample)
        models = _models(self.facts.snapshot)
        for entry in METRICS:
            if entry.kind == "histogram":
                yield histogram_family(entry, self.facts.tallies, models)
            elif self.per_device or "device" not in entry.labels:
                family = MetricFamily(entry.name.removesuffix("_info").removesuffix("_total"), entry.text, entry.kind)
                for sample in samples[entry.name]:
                    family.add_sample(entry.name, dict(zip(entry.labels, sample.labels, strict=True)), sample.value)
                yield family


def _model_samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The sums of devices by model."""
    counts: Counter[tuple[str, str, str]] = Counter()
    leasable: Counter[tuple[str, str, str]] = Counter()
    leased_milli: Counter[tuple[str, str, str]] = Counter()
    for worker, device in _accelerators(snapshot):
        model = _model(device)
        counts[model] += 1
        leasable[model] += _can_be_leased(worker, device)
        leased_milli[model] += snapshot.used(worker.id, device.id).share_milli
    for model, count in counts.items():
        yield Sample("hetero_capacity_devices", count, model)
        yield Sample("hetero_leasable_devices", leasable[model], model)
        yield Sample("hetero_leased_devices", leased_milli[model] / MILLI_PER_DEVICE, model)


def _models(snapshot: Snapshot) -> list[Model]:
    return sorted({_model(device) for _, device in _accelerators(snapshot)})


def _accelerators(snapshot: Snapshot) -> Iterator[tuple[Worker, Device]]:
    return ((worker, device) for worker in snapshot.workers for device in worker.devices if device.kind != "cpu")


def _can_be_leased(worker: Worker, device: Device) -> bool:
    return device.leasable and worker.state is WorkerState.ONLINE


def _model(device: Device) -> Model:
    return device.vendor, device.kind, device.model


_FINAL_REASONS = sorted(set(ReasonCode) - TRANSIENT - {ReasonCode.PAUSED})


def counter_samples(tallies: Sequence[Tally], models: Iterable[Model]) -> Iterator[Sample]:
    """The values of the counters.

    A counter begins at 0 before the first event, since Prometheus sees an increase only between two scrapes.

    :param models: the known models of devices
    """
    for model, rows in _by_model(tallies, TallyName.WAITED, models).items():
        yield Sample("hetero_placements_total", sum(row.count for row in rows), model)
    for name, spent_on in STEP_TIMES.items():
        for model, rows in _by_model(tallies, name, models).items():
            spent_s = sum(row.total_ms for row in rows) / 1000
            yield Sample("hetero_step_time_seconds_total", spent_s, (*model, spent_on))
    for reason, count in _by_label(tallies, TallyName.REFUSED, _FINAL_REASONS).items():
        yield Sample("hetero_refusals_total", count, (reason,))
    for outcome, count in _by_label(tallies, TallyName.ENDED, [*RunEnd, UNKNOWN_END]).items():
        yield Sample("hetero_leases_ended_total", count, (outcome,))
    yield Sample("hetero_preemptions_total", _by_label(tallies, TallyName.PREEMPTED, [""])[""])


HISTOGRAMS = {
    "hetero_request_wait_seconds": TallyName.WAITED,
    "hetero_lease_duration_seconds": TallyName.HELD,
}


def histogram_family(metric: Metric, tallies: Sequence[Tally], models: Iterable[Model]) -> HistogramMetricFamily:
    """A histogram of the catalog, by model; without observations for the models that had none yet."""
    family = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
    for model, rows in _by_model(tallies, HISTOGRAMS[metric.name], models).items():
        buckets = [(_bound_text(bound), float(count)) for bound, count in cumulative(rows)]
        family.add_metric(model, buckets, sum(row.total_ms for row in rows) / 1000)
    return family


def _bound_text(bound: str) -> str:
    """The bound as OpenMetrics wants it: with a decimal point."""
    return bound if bound == NO_BOUND else f"{float(bound)}"


def _by_label(tallies: Sequence[Tally], name: TallyName, labels: Collection[str]) -> dict[str, int]:
    counts = dict.fromkeys(map(str, labels), 0)
    return counts | {tally.label: tally.count for tally in tallies if tally.name is name}


def _by_model(tallies: Sequence[Tally], name: TallyName, models: Iterable[Model]) -> dict[Model, list[Tally]]:
    rows: defaultdict[Model, list[Tally]] = defaultdict(list, {model: [] for model in models})
    for tally in tallies:
        if tally.name is name:
            rows[split_model_label(tally.label)].append(tally)
    return dict(rows)
