"""Prints an `Inventory` as JSON.

Its arguments: ``python -m hetero_airflow.discovery WORKER_ID LABELS_JSON PROBE_TIMEOUT_S EXCLUDE``.
"""

import json
import sys

from hetero_airflow.discovery.discover import discover

if __name__ == "__main__":
    worker_id, labels, timeout_s, exclude = sys.argv[1:]
    inventory = discover(worker_id, labels=json.loads(labels), probe_timeout_s=float(timeout_s), exclude=exclude)
    print(inventory.model_dump_json())
