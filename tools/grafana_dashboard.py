"""Writes the dashboard for Grafana: ``python tools/grafana_dashboard.py > hetero_airflow/metrics/dashboard.json``."""

import sys

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

SOURCE = DataSourceRef("prometheus", "${datasource}")
_QUARTER = (6, 4)
_HALF = (12, 8)


def stat(title: str, query: str, unit: str = "short") -> Stat:
    """A panel with one number."""
    target = Dataquery().expr(query).ref_id("A").instant()
    return Stat().title(title).datasource(SOURCE).unit(unit).span(_QUARTER[0]).height(_QUARTER[1]).with_target(target)


def series(title: str, query: str, legend: str, unit: str = "short") -> TimeSeries:
    """A panel with lines over time."""
    target = Dataquery().expr(query).ref_id("A").legend_format(legend)
    return TimeSeries().title(title).datasource(SOURCE).unit(unit).span(_HALF[0]).height(_HALF[1]).with_target(target)


def make_dashboard() -> str:
    """The dashboard as JSON."""
    made = (
        Dashboard("Devices of Airflow")
        .uid("hetero-airflow")
        .tags(["airflow", "hetero_airflow"])
        .time("now-6h", "now")
        .refresh("30s")
        .with_variable(DatasourceVariable("datasource").type("prometheus").label("Data source"))
        .with_row(Row("Now"))
        .with_panel(stat("Waiting tasks", "sum(hetero_requests_waiting) or vector(0)"))
        .with_panel(stat("Longest wait", "max(hetero_oldest_request_wait_seconds)", "s"))
        .with_panel(stat("Leased devices", "sum(hetero_leased_devices)"))
        .with_panel(stat("Workers without a heartbeat", 'sum(hetero_workers{state="lost"}) or vector(0)'))
        .with_row(Row("Demand"))
        .with_panel(series("Waiting tasks by reason", "sum by (reason) (hetero_requests_waiting)", "{{reason}}"))
        .with_panel(series("Workers that would help", "sum by (type) (hetero_wanted_workers)", "{{type}}"))
        .with_row(Row("Tasks"))
        .with_panel(
            series(
                "Wait of 95 % of the placed tasks",
                "histogram_quantile(0.95, sum by (vendor, model, le) (rate(hetero_request_wait_seconds_bucket[1h])))",
                "{{vendor}}/{{model}}",
                "s",
            )
        )
        .with_panel(
            series(
                "Mean duration of leases",
                "sum by (vendor, model) (rate(hetero_lease_duration_seconds_sum[1h])) "
                "/ (sum by (vendor, model) (rate(hetero_lease_duration_seconds_count[1h])) > 0)",
                "{{vendor}}/{{model}}",
                "s",
            )
        )
        .with_panel(
            series(
                "Placements in an hour",
                "sum by (vendor, model) (increase(hetero_placements_total[1h]))",
                "{{vendor}}/{{model}}",
            )
        )
        .with_panel(
            series(
                "Ended leases in an hour",
                "sum by (outcome) (increase(hetero_leases_ended_total[1h]))",
                "{{outcome}}",
            )
        )
        .with_panel(series("Preemptions in an hour", "sum(increase(hetero_preemptions_total[1h]))", "preemptions"))
        .with_panel(
            series("Refusals in an hour", "sum by (reason) (increase(hetero_refusals_total[1h])) > 0", "{{reason}}")
        )
        .with_row(Row("Devices"))
        .with_panel(
            series("Leased devices by model", "sum by (vendor, model) (hetero_leased_devices)", "{{vendor}}/{{model}}")
        )
        .with_panel(
            series(
                "Leased part of the leasable devices",
                "sum by (vendor, model) (hetero_leased_devices) "
                "/ (sum by (vendor, model) (hetero_leasable_devices) > 0)",
                "{{vendor}}/{{model}}",
                "percentunit",
            )
        )
        .with_panel(
            series(
                "Mean utilization of leased devices",
                "avg by (vendor, model) ((hetero_device_utilization_ratio and on (worker, device) "
                "hetero_device_leased_ratio > 0) * on (worker, device) group_left (vendor, model) hetero_device_info)",
                "{{vendor}}/{{model}}",
                "percentunit",
            )
        )
        .with_panel(series("Power", "sum by (worker) (hetero_device_power_watts)", "{{worker}}", "watt"))
        .with_panel(
            series("Temperature", "max by (worker) (hetero_device_temperature_celsius)", "{{worker}}", "celsius")
        )
        .with_panel(series("Holds", "sum by (kind) (hetero_holds)", "{{kind}}"))
    )
    return str(JSONEncoder(sort_keys=True, indent=2).encode(made.build())) + "\n"


if __name__ == "__main__":
    sys.stdout.write(make_dashboard())
