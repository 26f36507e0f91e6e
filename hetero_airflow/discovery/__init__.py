"""Discovery: one probe a vendor, each a function that reads and a pure one that parses.

To add a vendor: write ``discovery/<vendor>.py``, add a row to `PROBES`, and put real outputs of
its tool into ``tests/fixtures/<vendor>/``.
"""

from __future__ import annotations

GROUP = "hetero_airflow.probes"

PROBES: dict[str, str] = {
    "cpu": "hetero_airflow.discovery.cpu:probe",
    "nvidia": "hetero_airflow.discovery.nvidia:probe",
    "amd": "hetero_airflow.discovery.amd:probe",
    "ascend": "hetero_airflow.discovery.ascend:probe",
    "google": "hetero_airflow.discovery.tpu:probe",
    "fpga": "hetero_airflow.discovery.fpga:probe",
    "simulated": "hetero_airflow.discovery.simulated:probe",
}
"""Probe name → "module:function"; the order is the order of the devices."""
