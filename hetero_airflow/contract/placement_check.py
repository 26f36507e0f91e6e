"""Placement checks: tasks that ask whether a device request could be placed now, and take nothing.

The format of the question in ``executor_config``, and of the answer in the workload's ``context_carrier``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from hetero_airflow.contract.envelope import ENVELOPE_KEY, pack_request

CHECK_MARK = "is_probe"
"""Key beside the requests in ``executor_config``."""

ANSWER_KEY = "hetero_probe"
"""Key of the answer in the workload's ``context_carrier``."""


class PlacementAnswer(BaseModel):
    """The executor's answer to a placement check."""

    model_config = ConfigDict(frozen=True)

    worker_id: str = ""
    device_ids: tuple[str, ...] = ()
    problem: str = ""
    """Why there is no placement; empty if there is one."""
    is_final: bool = False
    """No known worker could ever satisfy the request."""


def pack_placement_check(instances: Iterable[Mapping[str, Any]], stride: int = 1) -> dict[str, Any]:
    """The value of ``executor_config[ENVELOPE_KEY]`` for a placement check; see `pack_request`.

    :raises RequestError: arguments without templates that make no request
    """
    return {**pack_request(instances, stride), CHECK_MARK: True}


def is_placement_check(executor_config: object) -> bool:
    """Whether a device task is a placement check."""
    packed = executor_config.get(ENVELOPE_KEY) if isinstance(executor_config, Mapping) else None
    return isinstance(packed, Mapping) and packed.get(CHECK_MARK) is True


def add_answer(context_carrier: Mapping[str, Any] | None, answer: PlacementAnswer) -> dict[str, Any]:
    """The context carrier with the answer in it."""
    return {**(context_carrier or {}), ANSWER_KEY: answer.model_dump_json()}


def read_answer(context_carrier: Mapping[str, Any] | None) -> PlacementAnswer | None:
    """The answer in a workload's context carrier; None if ``HeteroExecutor`` did not hold the task."""
    text = (context_carrier or {}).get(ANSWER_KEY)
    return PlacementAnswer.model_validate_json(text) if text else None
