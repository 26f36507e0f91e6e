"""Every metric with its type, labels and meaning. The answers to Prometheus, the docs and the tests use this table.

Names and units follow https://prometheus.io/docs/practices/naming/. No label names a run or a task, since each value
of a label is a time series that Prometheus keeps.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "info"]

_DEVICE = ("worker", "device")
_MODEL = ("vendor", "kind", "model")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    """As Prometheus shows it."""
    kind: Kind
    text: str
    """What it means, as one sentence."""
    labels: tuple[str, ...] = ()
    """One with ``device`` has a time series for each device; a scrape with ``devices=false`` leaves it out."""


METRICS: tuple[Metric, ...] = (
    Metric("hetero_build_info", "info", "The installed version of hetero-airflow.", ("version",)),
    Metric("hetero_workers", "gauge", "Known workers.", ("engine", "state")),
    Metric(
        "hetero_worker_last_seen_timestamp_seconds", "gauge", "When the worker's last heartbeat arrived.", ("worker",)
    ),
    Metric(
        "hetero_last_decision_timestamp_seconds",
        "gauge",
        "When any scheduler last completed a cycle, also one without work; stays when all of them die.",
    ),
    Metric(
        "hetero_scheduler_last_decision_timestamp_seconds",
        "gauge",
        "The same for one scheduler; while another one decides, it goes after an hour without a cycle.",
        ("scheduler",),
    ),
    Metric("hetero_capacity_devices", "gauge", "Known devices, without the CPUs of hosts.", _MODEL),
    Metric(
        "hetero_leasable_devices", "gauge", "Devices of online workers without a hold and without a problem.", _MODEL
    ),
    Metric("hetero_leased_devices", "gauge", "Leased devices; a leased half counts as 0.5.", _MODEL),
    Metric("hetero_leases", "gauge", "Live leases.", ("state",)),
    Metric("hetero_holds", "gauge", "Workers and devices that get no new task.", ("kind",)),
    Metric("hetero_requests_waiting", "gauge", "Waiting requests by the kind of their reason.", ("reason",)),
    Metric("hetero_requests_unservable", "gauge", "Waiting requests that no known worker can serve."),
    Metric(
        "hetero_oldest_request_wait_seconds",
        "gauge",
        "The longest wait of a request that is not paused; 0 if none.",
    ),
    Metric("hetero_placements_total", "counter", "Leases that were granted.", _MODEL),
    Metric(
        "hetero_refusals_total",
        "counter",
        "Requests that failed because no known worker could ever serve them.",
        ("reason",),
    ),
    Metric("hetero_preemptions_total", "counter", "Leases whose task was asked to save and end."),
    Metric(
        "hetero_leases_ended_total",
        "counter",
        "Ended leases by the end of their task; unknown if it never ran.",
        ("outcome",),
    ),
    Metric(
        "hetero_request_wait_seconds",
        "histogram",
        "How long requests waited for the devices that they got.",
        _MODEL,
    ),
    Metric("hetero_lease_duration_seconds", "histogram", "From the grant of a lease to its end.", _MODEL),
    Metric(
        "hetero_step_time_seconds_total",
        "counter",
        "What the steps of tasks with a loader spent their time on: data (waiting for a batch), compute or save.",
        (*_MODEL, "spent_on"),
    ),
    Metric(
        "hetero_data_cache_hits_total",
        "counter",
        "Objects that processes found in the data cache of the worker's host; each once per process.",
        ("worker",),
    ),
    Metric(
        "hetero_data_cache_read_bytes_total", "counter", "Bytes that processes there read from stores.", ("worker",)
    ),
    Metric("hetero_data_cache_saved_bytes_total", "counter", "Bytes of the objects that they found.", ("worker",)),
    Metric(
        "hetero_data_cache_saved_seconds_total",
        "counter",
        "How long reading these would have taken, at the average speed of the host's reads.",
        ("worker",),
    ),
    Metric("hetero_wanted_workers", "gauge", "More workers that would let waiting requests start now.", ("type",)),
    Metric(
        "hetero_device_info",
        "info",
        "The facts of the device.",
        (*_DEVICE, *_MODEL, "partition", "simulated"),
    ),
    Metric("hetero_device_leasable", "gauge", "1 if the device can be leased, else 0.", _DEVICE),
    Metric("hetero_device_leased_ratio", "gauge", "The leased part of the device, from 0 to 1.", _DEVICE),
    Metric("hetero_device_utilization_ratio", "gauge", "How busy the device is, from 0 to 1.", _DEVICE),
    Metric("hetero_device_memory_free_bytes", "gauge", "Free memory of the device.", _DEVICE),
    Metric("hetero_device_temperature_celsius", "gauge", "Temperature of the device.", _DEVICE),
    Metric("hetero_device_power_watts", "gauge", "Power that the device draws.", _DEVICE),
    Metric(
        "hetero_device_ecc_errors_total",
        "counter",
        "Uncorrected memory errors since the device's driver was loaded.",
        _DEVICE,
    ),
)
