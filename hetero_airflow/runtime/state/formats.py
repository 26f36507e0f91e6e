"""Values that are saved as files of their own: tables as Arrow IPC, and scikit-learn's estimators through skops.

Both formats hold data only. Arrow IPC has no code. skops rebuilds an estimator from a list of types that it trusts; a
file with another type is refused when it is written, and again when it is read.
"""

import importlib
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero_airflow.errors import InvalidCheckpoint, shorten

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TRUSTED = (
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
)
"""Types that skops 0.16 does not trust by itself: plain Python classes of numbers and arrays, which
``MLPClassifier.partial_fit`` needs. Compiled types, such as the trees of forests, check no indices and stay refused."""

_EXACT_OBJECTS = {"string", "bytes", "boolean", "empty", "date", "decimal"}
"""What a column of Python objects may hold, in pandas' words. Arrow gives other objects back as another type."""

_COLUMN = "values"
"""The name of a Series' only column in its file."""


@dataclass(frozen=True, slots=True)
class ValueFile:
    """A value of a state as the content of a file."""

    kind: str
    """``arrow``, ``dataframe``, ``series`` or ``sklearn``."""
    suffix: str
    """Of the file's name: ``arrow`` or ``skops``."""
    content: bytes


def to_file(value: object, where: str) -> ValueFile | None:
    """The file of a table or an estimator; None for a value of another type.

    :param where: the value's place in the state, for errors
    :raises InvalidCheckpoint: a package is missing, or the format can't hold the value
    """
    pandas, pyarrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    sklearn = sys.modules.get("sklearn.base")
    if pyarrow is not None and isinstance(value, pyarrow.Table):
        return ValueFile("arrow", "arrow", _arrow_bytes(value))
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return ValueFile("dataframe", "arrow", _frame_bytes(value, where))
    if pandas is not None and isinstance(value, pandas.Series):
        return ValueFile("series", "arrow", _frame_bytes(value.to_frame(_COLUMN), where))
    if sklearn is not None and isinstance(value, sklearn.BaseEstimator):
        return ValueFile("sklearn", "skops", _estimator_bytes(value, where))
    return None


def from_file(kind: str, content: bytes, name: str) -> Any:
    """The value from a file's content.

    :param name: the file's name, for errors
    :raises InvalidCheckpoint: a package is missing, the content is damaged, or it has a type that is not trusted
    """
    try:
        if kind == "sklearn":
            return _read_estimator(content, name)
        table = _read_arrow(content, name)
        if kind == "arrow":
            return table
        _import("pandas", f"to load {name}")
        frame = table.to_pandas()
        return frame if kind == "dataframe" else frame[_COLUMN]
    except InvalidCheckpoint:
        raise
    except Exception as error:  # a damaged zip or table raises whatever its reader meets first
        raise InvalidCheckpoint(
            f"to load {name}",
            found=f"content that can't be read ({type(error).__name__}: {shorten(str(error))})",
            remedy="Use the previous checkpoint",
        ) from error


def _arrow_bytes(table: "pa.Table") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read_arrow(content: bytes, name: str) -> "pa.Table":
    pyarrow = _import("pyarrow", f"to load {name}")
    return pyarrow.ipc.open_file(content).read_all()


def _frame_bytes(frame: "pd.DataFrame", where: str) -> bytes:
    import pandas as pd

    pyarrow = _import("pyarrow", f"to save {where}")
    indexes = [frame.index.get_level_values(level) for level in range(frame.index.nlevels)]
    columns = [(f"the index {shorten(index.name)}", index) for index in indexes]
    columns += [(f"the column {shorten(name)}", frame.iloc[:, number]) for number, name in enumerate(frame.columns)]
    for label, column in columns:
        held = pd.api.types.infer_dtype(column, skipna=True) if column.dtype == object else "empty"
        if held not in _EXACT_OBJECTS:
            raise InvalidCheckpoint(
                f"to save {where}",
                found=f"{label} with {held} objects",
                remedy="Convert it to numbers, texts or times; Arrow can't give these objects back as they are",
            )
    try:
        return _arrow_bytes(pyarrow.Table.from_pandas(frame))
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise InvalidCheckpoint(
            f"to save {where}",
            found=f"a table that Arrow can't hold ({shorten(str(error))})",
            remedy="Give each column one type and a name of its own",
        ) from error


def _estimator_bytes(estimator: object, where: str) -> bytes:
    skops = _import("skops.io", f"to save {where}")
    content: bytes = skops.dumps(estimator)
    unknown = skops.get_untrusted_types(data=content)
    _refuse_untrusted(f"to save {where}", set(unknown) - set(TRUSTED))
    return content


def _read_estimator(content: bytes, name: str) -> Any:
    skops = _import("skops.io", f"to load {name}")
    unknown = set(skops.get_untrusted_types(data=content))
    _refuse_untrusted(f"to load {name}", unknown - set(TRUSTED))
    return skops.loads(content, trusted=sorted(unknown))


def _refuse_untrusted(asked: str, unknown: set[str]) -> None:
    if unknown:
        names = sorted(unknown)
        raise InvalidCheckpoint(
            asked,
            found=f"types that skops does not trust: {', '.join(names[:5])}",
            remedy="Save its content as numbers, lists, dicts or arrays; pickle is not used",
        )


def _import(module: str, asked: str) -> Any:
    package = module.split(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # skops reads all names of all modules, also Airflow's deprecated ones
            return importlib.import_module(module)
    except ImportError as error:
        raise InvalidCheckpoint(
            asked, found=f"no package {package}", remedy=f"Install it on the workers: pip install {package}"
        ) from error
