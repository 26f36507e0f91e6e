"""The supervisor's calls of Airflow's Execution API, beside those of Airflow's own supervisor."""

import time
from collections.abc import Callable
from typing import Any

from airflow.sdk.api.datamodels._generated import TaskStateStoreResponse

from hetero_airflow.contract.execution_api import find_problem, is_outage

_ASK_EVERY_S = 2.0

_LONGEST_OUTAGE_S = 3600.0
"""After this time the task's token has expired, with the recommended [execution_api] jwt_expiration_time."""

_ATTEMPTS = 2
"""The API may answer again just after a call was given up. A call that fails twice although it answers is at fault."""


def repeat_after_outages(call: Callable[[], None], client: Any, log: Any) -> None:
    """Make a call of the API server. If no server answers, wait for one, and make the call again.

    Blocks as long as an outage lasts, but at most an hour. Airflow's client makes each call several times already.

    :param call: must be harmless if it is repeated
    """
    attempts, end = 0, time.monotonic() + _LONGEST_OUTAGE_S
    while True:
        try:
            call()
        except Exception as error:
            attempts += 1
            if not is_outage(error):
                raise
            if _wait_for_answer(client, log, error, end):
                attempts = 0
            if attempts >= _ATTEMPTS or time.monotonic() >= end:
                raise
        else:
            return


def _wait_for_answer(client: Any, log: Any, error: Exception, end: float) -> bool:
    """Wait until the API server answers. Returns whether it did not answer at first."""
    problem = find_problem(client)
    if problem is None:
        return False
    log.warning("No API server of Airflow answers. This process waits for one, then it goes on", error=str(error))
    while problem is not None and time.monotonic() < end:
        time.sleep(_ASK_EVERY_S)
        problem = find_problem(client)
    return True


class ExecutionApiStates:
    """The task state store through the Execution API."""

    def __init__(self, client: Any, task_instance_id: Any) -> None:
        self._client = client
        self._id = task_instance_id

    def get(self, key: str) -> Any:
        """The JSON value of a key; None without one."""
        answer = self._client.task_state_store.get(self._id, key)
        return answer.value if isinstance(answer, TaskStateStoreResponse) else None

    def set(self, key: str, value: Any) -> None:
        """Write the JSON value of a key."""
        self._client.task_state_store.set(self._id, key, value, None)
