"""What runs inside the task. Never imports airflow or SQLAlchemy, so it works in a plain container.

>>> from hetero_airflow.runtime import current_lease
>>> current_lease()
Traceback (most recent call last):
    ...
hetero_airflow.errors.NoLeaseError: the device lease of this process; found no HETERO_AIRFLOW_LEASE in the \
environment. Run the task with HeteroExecutor; `airflow hetero config --check` says what is missing.
"""

from __future__ import annotations

from hetero_airflow.runtime.task_lease import TaskLease, current_lease
from hetero_airflow.runtime.torch_device import torch_device

__all__ = ["TaskLease", "current_lease", "torch_device"]
