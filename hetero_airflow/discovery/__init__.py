"""Discovery of the devices on a worker host. One probe a vendor: a function that reads, and a pure one that parses.

To add a vendor: write ``discovery/<vendor>.py``, add a row to `PROBES`, and put real outputs of its tool into
``tests/fixtures/<vendor>/``. A row in `VENDOR_SIGNS` is optional. `sources` has what several probes read with, `health`
has the watches for device errors and the burn-in.

Each probe runs in its own process with a time limit (`isolation`). Rejected: threads, since a call into a hung driver
can't be ended; one process for all probes, since a library that crashes would lose the other vendors' results.
`readings_watch` keeps a process for each probe, which reads again with every heartbeat.
"""

from hetero_airflow.settings import SIMULATED_DEVICES_VARIABLE

GROUP = "hetero_airflow.probes"

PROBES: dict[str, str] = {
    "cpu": "hetero_airflow.discovery.cpu:probe",
    "nvidia": "hetero_airflow.discovery.nvidia:probe",
    "amd": "hetero_airflow.discovery.amd:probe",
    "ascend": "hetero_airflow.discovery.ascend:probe",
    "google": "hetero_airflow.discovery.google:probe",
    "fpga": "hetero_airflow.discovery.fpga:probe",
    "simulated": "hetero_airflow.discovery.simulated:probe",
}
"""Probe name → "module:function"; the order is the order of the devices."""

VENDOR_SIGNS: dict[str, tuple[str, ...]] = {
    "nvidia": ("/dev/nvidia*", "/proc/driver/nvidia", "/dev/dxg"),
    "amd": ("/dev/kfd",),
    "ascend": ("/dev/davinci*",),
    "google": ("/dev/accel*", "/dev/vfio/[0-9]*", "$TPU_ACCELERATOR_TYPE"),
    "fpga": (
        "/sys/class/fpga_manager/*",
        "/sys/class/fpga_region/*",
        *(f"/sys/bus/pci/drivers/{driver}" for driver in ("xocl", "xclmgmt", "dfl-pci")),
    ),
    "simulated": (f"${SIMULATED_DEVICES_VARIABLE}",),
}
"""Probe name → traces of its vendor: paths with wildcards, or ``$`` and an environment variable.

A probe runs only if one of its traces exists, which saves a process. A probe without a row always runs.
"""
