"""``@task.torchrun``: a function whose source is the script of every rank."""

import ast
import builtins
import inspect
import json
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator
from airflow.sdk.exceptions import AirflowFailException

from hetero_airflow.errors import RequestError
from hetero_airflow.operators.torchrun import TorchrunOperator
from hetero_airflow.runtime.rank_process import RESULT_VARIABLE
from hetero_airflow.runtime.scratch_folder import ScratchFolder

_ARGUMENTS = "arguments.json"

_HEAD = "from __future__ import annotations; import sys; sys.path[1:1] = {paths!r}"

_CALL = f"""

if __name__ == "__main__":
    import json, os

    with open(os.path.join(os.path.dirname(__file__), "{_ARGUMENTS}")) as file:
        arguments = json.load(file)
    result = {{name}}(*arguments["args"], **arguments["kwargs"])
    if result is not None and os.environ["RANK"] == "0":
        with open(os.environ["{RESULT_VARIABLE}"], "w") as file:
            json.dump(result, file)
"""


class TorchrunDecoratedOperator(TorchrunOperator, DecoratedOperator):
    """The operator behind ``@task.torchrun``."""

    template_fields: Sequence[str] = ("op_args", "op_kwargs", "env")
    custom_operator_name: str = "@task.torchrun"

    def __init__(self, *, task_id: str, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        kwargs["python_callable"] = python_callable
        super().__init__(task_id=task_id, script=f"{python_callable.__name__}.py", **kwargs)
        script_of(python_callable)

    def execute(self, context: Context) -> Any:
        """Call the function in every rank; return what it returned in rank 0.

        :raises RanksFailed: torchrun gave up
        """
        arguments = {"args": list(self.op_args), "kwargs": dict(self.determine_kwargs(context))}
        folder = ScratchFolder("hetero-airflow-torchrun-")
        try:
            (folder.root / _ARGUMENTS).write_text(_as_json(arguments))
            script = folder.root / f"{self.python_callable.__name__}.py"
            script.write_text(script_of(self.python_callable, sys.path))
            self.script = str(script)
            return super().execute(context)
        finally:
            folder.remove()


def script_of(function: Callable[..., Any], paths: Sequence[str] = ()) -> str:
    """The function's source as a script that calls it. Each of its lines has the number that it has in its file.

    :param paths: what the script adds to ``sys.path``
    :raises RequestError: there is no source, or it uses names of its file, which the script does not have
    """
    try:
        lines, number = inspect.getsourcelines(function)
    except OSError as error:
        raise _refusal(function, "no source", "Write the function into the DAG file") from error
    block = "if True:\n" if lines[0][0].isspace() else ""
    node: ast.AST = ast.parse(block + "".join(lines)).body[0]
    if isinstance(node, ast.If):
        node = node.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise _refusal(function, f"no plain function ({type(node).__name__})", "Write it with def")
    ours = [place for place, decorator in enumerate(node.decorator_list) if ".torchrun" in ast.unparse(decorator)]
    starts = [*(decorator.lineno for decorator in node.decorator_list), node.lineno]
    skipped = starts[ours[0] + 1 if ours else 0] - (2 if block else 1)
    empty = "\n" * max(1, number + skipped - (2 if block else 1))
    text = _HEAD.format(paths=[*paths]) + empty + block + "".join(lines[skipped:])
    for name in _foreign_names(text):
        remedy = "Import it inside the function, or pass it as an argument"
        raise _refusal(function, f"the name {name} of the DAG file, which the ranks don't have", remedy)
    return text.rstrip() + _CALL.format(name=node.name)


def _foreign_names(text: str) -> Iterator[str]:
    """The names that a script reads and does not define."""
    top = symtable.symtable(text, "script", "exec")
    defined = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    known = {"__file__", *dir(builtins)} | defined
    tables = [top]
    while tables:
        table = tables.pop(0)
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is top or symbol.is_global()) and symbol.get_name() not in known:
                yield symbol.get_name()


def _refusal(function: Callable[..., Any], found: str, remedy: str) -> RequestError:
    return RequestError("@task.torchrun", getattr(function, "__name__", function), found=found, remedy=remedy)


def _as_json(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError) as error:
        remedy = "Pass numbers, texts, lists and dicts, such as the id of what the ranks should load"
        raise AirflowFailException(
            RequestError("@task.torchrun", "its arguments", found=f"a value that is no JSON ({error})", remedy=remedy)
        ) from error
