"""Builders, test doubles and hypothesis strategies, for tests of this package and of plug-ins for it."""

from hetero_airflow.testing.builders import (
    EPOCH,
    FakeClock,
    FakeEngine,
    RejectingStore,
    a_cpu,
    a_device,
    a_lease,
    a_pending,
    a_place,
    a_run,
    a_signer,
    a_speed,
    a_task_lease,
    a_worker,
    leased,
    move_lease,
)  # fmt: skip
from hetero_airflow.testing.strategies import devices, estimates, holdings, requests, snapshots, workers

__all__ = [
    "EPOCH", "FakeClock", "FakeEngine", "RejectingStore", "a_cpu", "a_device", "a_lease", "a_pending", "a_place",
    "a_run", "a_signer", "a_speed", "a_task_lease", "a_worker", "devices", "estimates", "holdings", "leased",
    "move_lease", "requests", "snapshots", "workers",
]  # fmt: skip
