"""Where checkpoints are kept, and what makes them whole: shards, then a manifest, then the index that names it.

To add a store: write ``checkpoints/<name>.py``, add a row to `CHECKPOINT_STORES`; the contract suite runs over every
row by itself. Never imports airflow or SQLAlchemy: a task in a plain container uses it.
"""

from __future__ import annotations

GROUP = "hetero_airflow.checkpoint_stores"

CHECKPOINT_STORES: dict[str, str] = {
    "file": "hetero_airflow.checkpoints.filesystem:open_filesystem",
    "s3": "hetero_airflow.checkpoints.object_store:open_object_store",
}
"""Scheme of the URL → "module:function"; the function takes a `CheckpointPlace` and gives a `CheckpointStore`."""
