"""Code that runs inside a device task. It never imports airflow or SQLAlchemy, so it works in a plain container.

DAG authors use `current_lease`, `torch_device`, `progress`, the module `checkpoint`, what sets torch for the leased
device (`precision`, `batch_size`, `compile`, `data_parallel`), and outside of Airflow `local_lease`. The other modules
serve these: the loop and its notice to stop, the ``state/`` of a training, the processes of a ``gang/``.

>>> from hetero_airflow.runtime import current_lease
>>> current_lease()
Traceback (most recent call last):
    ...
hetero_airflow.errors.NoLeaseError: The device lease of this process can't be used; found no HETERO_AIRFLOW_LEASE \
in the environment. In a task, use HeteroExecutor; `airflow hetero config --check` says what is missing. Outside of \
Airflow, take a lease with hetero_airflow.runtime.local_lease("gpu").
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetero_airflow.contract.task_lease import TaskLease, current_lease, torch_device
from hetero_airflow.runtime.progress_file import progress

if TYPE_CHECKING:
    from hetero_airflow.runtime.compute.batch_search import batch_size as batch_size
    from hetero_airflow.runtime.compute.compiled_model import compile as compile  # noqa: A004
    from hetero_airflow.runtime.compute.data_parallel import data_parallel as data_parallel
    from hetero_airflow.runtime.compute.mixed_precision import precision as precision
    from hetero_airflow.runtime.local_leases import local_lease as local_lease

__all__ = [
    "TaskLease",
    "batch_size",
    "compile",
    "current_lease",
    "data_parallel",
    "local_lease",
    "precision",
    "progress",
    "torch_device",
]

_ON_FIRST_USE = {
    "batch_size": "compute.batch_search",
    "compile": "compute.compiled_model",
    "data_parallel": "compute.data_parallel",
    "local_lease": "local_leases",
    "precision": "compute.mixed_precision",
}
"""Name → module. A task of a scheduler needs neither discovery nor a policy, and not each task needs torch."""


def __getattr__(name: str) -> Any:
    """Import what is in `_ON_FIRST_USE`."""
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)
