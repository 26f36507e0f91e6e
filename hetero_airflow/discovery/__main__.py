"""``python -m hetero_airflow.discovery WORKER_ID LABELS_JSON PROBE_TIMEOUT_S``: prints an `Inventory` as JSON."""

from __future__ import annotations

import json
import sys

from hetero_airflow.discovery.discover import discover

if __name__ == "__main__":
    worker_id, labels, timeout_s = sys.argv[1:]
    print(discover(worker_id, labels=json.loads(labels), probe_timeout_s=float(timeout_s)).model_dump_json())
