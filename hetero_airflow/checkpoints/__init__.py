"""Checkpoint storage. A checkpoint is written in this order: its files, then its manifest, then the index entry.

To add a store: write ``checkpoints/<name>.py`` and add a row to `CHECKPOINT_STORES`; the contract suite runs over every
row. This package never imports airflow or SQLAlchemy, because a task in a plain container uses it.
"""

from hetero_airflow.model import data_url

GROUP = "hetero_airflow.checkpoint_stores"

CHECKPOINT_STORES: dict[str, str] = {
    "file": "hetero_airflow.checkpoints.filesystem:open_filesystem",
    "s3": "hetero_airflow.checkpoints.object_store:open_object_store",
    "gs": "hetero_airflow.checkpoints.cloud_store:open_google",
    "az": "hetero_airflow.checkpoints.cloud_store:open_azure",
}
"""Scheme of the URL → "module:function"; the function takes a `CheckpointPlace` and returns a `CheckpointStore`."""

OBJECT_STORES = data_url.OBJECT_STORES
"""Those whose function also takes credentials, a number of attempts, and a store with which to share a client."""
