"""Writes hetero_airflow/contract/operator_keywords.py from the signatures of Airflow's operators that ours extend."""

import inspect
from pathlib import Path

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import BaseOperator, BaseSensorOperator

TARGET = Path(__file__).parents[1] / "hetero_airflow" / "contract" / "operator_keywords.py"

HEAD = '''"""The keywords of Airflow's operators, for type checkers. tools/operator_keywords.py wrote them."""

# ruff: noqa: RUF036
# mypy: disable-error-code="type-arg"
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Callable, Collection, Container, Iterable, Sequence
    from datetime import datetime, timedelta
    from typing import Literal

    from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
    from airflow.providers.cncf.kubernetes.secret import Secret
    from airflow.sdk import DAG, Context, RetryPolicy, TaskGroup
    from airflow.sdk.types import WeightRuleParam
    from kubernetes.client import models as k8s  # type: ignore[import-untyped]

    TaskStateChangeCallback = Callable[[Context], None]
    TaskPreExecuteHook = Callable[[Context], None]
    TaskPostExecuteHook = Callable[[Context, Any], None]
'''

CLASSES: tuple[tuple[str, str, type, frozenset[str]], ...] = (
    ("OperatorKeywords", "TypedDict", BaseOperator, frozenset({"task_id"})),
    ("SensorKeywords", "OperatorKeywords", BaseSensorOperator, frozenset()),
    ("BashKeywords", "TypedDict", BashOperator, frozenset({"bash_command"})),
    ("PythonKeywords", "TypedDict", PythonOperator, frozenset({"python_callable", "op_args", "op_kwargs"})),
    ("PodKeywords", "OperatorKeywords", KubernetesPodOperator, frozenset({"schedule_timeout_seconds"})),
)
"""Name, base, Airflow's class, and the keywords that our classes state themselves."""


def text() -> str:
    """The module's text, for the installed versions."""
    of_base = set(inspect.signature(BaseOperator.__init__).parameters)
    parts = [HEAD]
    for name, base, operator, stated in CLASSES:
        left_out = stated | {"self"} | (of_base if operator is not BaseOperator else frozenset())
        lines = [f'\n\nclass {name}({base}, total=False):\n    """Those of {operator.__name__}."""\n']
        for parameter in inspect.signature(operator.__init__).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in left_out:
                annotation = " ".join(parameter.annotation.split())
                lines.append(f"    {parameter.name}: {annotation.removeprefix('( ').removesuffix(' )')}")
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    TARGET.write_text(text())
