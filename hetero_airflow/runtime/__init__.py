"""Code that runs inside a device task. It never imports airflow or SQLAlchemy, so it works in a plain container.

DAG authors use `current_lease`, `torch_device` and the module `checkpoint`. The other modules serve these: the loop and
its notice to stop, the ``state/`` of a training, and the processes of a ``gang/``.

>>> from hetero_airflow.runtime import current_lease
>>> current_lease()
Traceback (most recent call last):
    ...
hetero_airflow.errors.NoLeaseError: the device lease of this process; found no HETERO_AIRFLOW_LEASE in the \
environment. Run the task with HeteroExecutor; `airflow hetero config --check` says what is missing.
"""

from __future__ import annotations

from hetero_airflow.runtime.task_lease import TaskLease, current_lease, torch_device

__all__ = ["TaskLease", "current_lease", "torch_device"]
