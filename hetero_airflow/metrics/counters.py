"""The counters and histograms, from the store's tallies. They survive restarts, and all schedulers count in them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily

from hetero_airflow.metrics.catalog import Metric
from hetero_airflow.model.plan import TRANSIENT, ReasonCode
from hetero_airflow.model.run import RunEnd
from hetero_airflow.store.sql.tallies import NO_BOUND, UNKNOWN_END, Tally, TallyName, cumulative, split_model_label

Model = tuple[str, str, str]
"""Vendor, kind and model."""

HISTOGRAMS = {
    "hetero_request_wait_seconds": TallyName.WAITED,
    "hetero_lease_duration_seconds": TallyName.HELD,
}

_FINAL_REASONS = sorted(set(ReasonCode) - TRANSIENT - {ReasonCode.PAUSED})


def counters(tallies: Sequence[Tally], models: Iterable[Model]) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """(metric, value, values of its labels) of each counter.

    A counter begins at 0 before the first event, since Prometheus sees an increase only between two scrapes.

    :param models: the known models of devices
    """
    for model, rows in _by_model(tallies, TallyName.WAITED, models).items():
        yield "hetero_placements_total", sum(row.count for row in rows), model
    for reason, count in _by_label(tallies, TallyName.REFUSED, _FINAL_REASONS).items():
        yield "hetero_refusals_total", count, (reason,)
    for outcome, count in _by_label(tallies, TallyName.ENDED, [*RunEnd, UNKNOWN_END]).items():
        yield "hetero_leases_ended_total", count, (outcome,)
    yield "hetero_preemptions_total", _by_label(tallies, TallyName.PREEMPTED, [""])[""], ()


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
