"""What would help now, as metrics of Airflow: its own StatsD or OpenTelemetry takes them where they are looked at.

=================================== ===================================================================
``hetero.wanted_workers.<type>``    more workers of the type that would let all that waits start
``hetero.requests.waiting``         requests that wait for devices
``hetero.requests.unservable``      of those, the ones that no known type of worker would do for
=================================== ===================================================================
"""

from __future__ import annotations

from airflow.observability import stats

from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.scheduling.advice.wanted_workers import wanted_workers


def emit_demand(snapshot: Snapshot) -> None:
    """Tell Airflow's metrics; every known type each time, so that none keeps an old number."""
    found = wanted_workers(snapshot)
    for one in found.types:
        stats.gauge(f"hetero.wanted_workers.{one.type.replace('.', '_')}", one.workers)
    stats.gauge("hetero.requests.waiting", found.waiting)
    stats.gauge("hetero.requests.unservable", found.unservable)
