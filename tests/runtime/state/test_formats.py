"""Tables and estimators in a state: files of their own, without pickle."""

import os
import signal
import subprocess
import sys
import zipfile
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import BaseEstimator
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from hetero_airflow.errors import InvalidCheckpoint, RequestError
from hetero_airflow.runtime.state.files import read_state, write_state
from hetero_airflow.runtime.state.formats import from_file, to_file
from hetero_airflow.runtime.state.tree import stage
from hetero_airflow.runtime.step_loop import StepLoop
from tests.runtime.conftest import Begin

ROWS = np.random.default_rng(0).normal(size=(40, 3))
CLASSES = (ROWS[:, 0] > 0).astype(int)


def round_trip(value: Any, folder: Path) -> Any:
    write_state(stage({"x": [value]}), folder)
    return read_state(folder)["x"][0]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(),
        pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, np.nan]}),
        pd.DataFrame(
            {1: pd.Categorical(["u", "v", "u"]), 2: pd.date_range("2026-01-01", periods=3, tz="Europe/Paris")}
        ),
        pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("p", 1), ("q", 2)], names=["name", None])),
        pd.DataFrame({"a": np.array([1, 2], dtype="int8"), "b": pd.array([1, None], dtype="Int64")}, index=[7, 3]),
        pd.DataFrame({"a": np.array([Decimal("1.5"), None], dtype=object), "b": np.array([b"\0", b""], dtype=object)}),
    ],
)
def test_a_frame_is_restored_with_its_types_index_and_names(frame: pd.DataFrame, tmp_path: Path) -> None:
    pd.testing.assert_frame_equal(round_trip(frame, tmp_path), frame, check_freq=False)


@pytest.mark.parametrize("name", [None, "loss", 7, ("a", 1)])
def test_a_series_is_restored_with_its_name(name: Any, tmp_path: Path) -> None:
    series = pd.Series([1.0, np.nan], index=["a", "b"], name=name)
    pd.testing.assert_series_equal(round_trip(series, tmp_path), series)


def test_a_table_of_arrow_is_restored_with_its_schema(tmp_path: Path) -> None:
    table = pa.table({"a": [[1, 2], None], "b": [{"c": 1}, {"c": 2}]}).replace_schema_metadata({"source": "test"})
    restored = round_trip(table, tmp_path)
    assert restored.equals(table, check_metadata=True)
    assert [path.name for path in tmp_path.glob("value-*")] == ["value-00000.arrow"]


@pytest.mark.parametrize(
    "estimator",
    [
        SGDClassifier(random_state=0),
        make_pipeline(StandardScaler(), SGDClassifier(random_state=0)),
        MLPClassifier((4,), max_iter=300, tol=1e-2, random_state=0),
        make_pipeline(FunctionTransformer(np.tanh), SGDClassifier(random_state=0)),
    ],
)
@pytest.mark.filterwarnings("ignore:The .airflow")  # skops looks for a function in all modules, as pickle does
def test_an_estimator_is_restored_fitted(estimator: Any, tmp_path: Path) -> None:
    estimator.fit(ROWS, CLASSES)
    restored = round_trip(estimator, tmp_path)
    assert type(restored) is type(estimator)
    assert np.array_equal(restored.predict(ROWS), estimator.predict(ROWS))


def test_an_estimator_goes_on_learning_as_if_it_had_never_been_saved(tmp_path: Path) -> None:
    learned = MLPClassifier((4,), random_state=0)
    learned.partial_fit(ROWS, CLASSES, classes=[0, 1])
    restored = round_trip(learned, tmp_path)
    for estimator in (learned, restored):
        estimator.partial_fit(ROWS, CLASSES)
    assert np.array_equal(restored.coefs_[0], learned.coefs_[0])


class Unknown(BaseEstimator):
    """An estimator that skops has never heard of."""


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Unknown(), "types that skops does not trust: "),
        (FunctionTransformer(lambda rows: rows), "types that skops does not trust"),
        (DecisionTreeClassifier().fit(ROWS, CLASSES), "types that skops does not trust: sklearn.tree._tree.Tree"),
        (pd.DataFrame({"a": [{1}, {2}]}), "the column 'a' with mixed objects"),
        (pd.DataFrame({"a": [1]}, index=[Path("x")]), "the index None with mixed objects"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "a table that Arrow can't hold ("),
    ],
)
def test_a_value_that_the_format_cannot_hold_is_refused_before_the_first_step(
    begin: Begin, value: Any, found: str
) -> None:
    with pytest.raises(RequestError) as caught:
        StepLoop(begin(), 3, 1, state={"x": value})
    assert caught.value.field == "state['x']"
    assert found in caught.value.found
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("module", "value", "package"),
    [("pyarrow", pd.DataFrame({"a": [1]}), "pyarrow"), ("skops.io", SGDClassifier(), "skops")],
)
def test_a_missing_package_is_named(monkeypatch, module: str, value: object, package: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidCheckpoint, match=rf"save state; found no package {package}.*pip install {package}"):
        to_file(value, "state")


def test_a_reader_without_pandas_hears_what_to_install(monkeypatch) -> None:
    file = to_file(pd.DataFrame({"a": [1]}), "state")
    assert file is not None
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidCheckpoint, match="found no package pandas"):
        from_file(file.kind, file.content, "value-00000.arrow")


@pytest.mark.parametrize("kind", ["arrow", "dataframe", "sklearn"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04garbage", b"PK\x03\x04"])
def test_damaged_content_is_refused(kind: str, content: bytes) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"load value-00000; found content that can't be read"):
        from_file(kind, content, "value-00000")


def test_a_changed_file_with_another_type_is_refused_and_builds_nothing() -> None:
    file = to_file(SGDClassifier(), "state")
    assert file is not None
    changed = BytesIO()
    with zipfile.ZipFile(BytesIO(file.content)) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            text = source.read(name).replace(b"sklearn.linear_model._stochastic_gradient", b"subprocess")
            target.writestr(name, text.replace(b"SGDClassifier", b"Popen"))
    with pytest.raises(InvalidCheckpoint, match=r"types that skops does not trust: subprocess\.Popen"):
        from_file("sklearn", changed.getvalue(), "value-00000.skops")


@pytest.mark.parametrize("name", ["../value-00000.arrow", "/etc/passwd", "state.json", "value-00000.pkl", 5])
def test_a_file_outside_the_checkpoint_is_not_read(name: object, tmp_path: Path) -> None:
    staged = stage({"x": pa.table({"a": [1]})})
    staged.tree["x"]["file"] = name
    write_state(staged, tmp_path)
    with pytest.raises(InvalidCheckpoint, match="a tree that can't be read"):
        read_state(tmp_path)


TRAINING = """
import os, signal, sys
import numpy as np, pandas as pd, pyarrow as pa
from sklearn.linear_model import SGDClassifier
from hetero_airflow.runtime import checkpoint

kill_at = int(sys.argv[1])
model, seen = SGDClassifier(random_state=0), pd.DataFrame({"step": pd.Series(dtype="int64")})
first = None
state = {"model": model, "seen": seen, "raw": pa.table({"step": pa.array([], pa.int64())})}
for step in checkpoint.steps(12, every=5, state=state):
    first = step if first is None else first
    if step == kill_at:
        checkpoint.latest()  # waits for the save in the background
        os.kill(os.getpid(), signal.SIGKILL)
    rows = np.random.default_rng(step).normal(size=(20, 3))
    model.partial_fit(rows, rows[:, 0] > 0, classes=[False, True])
    seen.loc[len(seen)] = step
    state["raw"] = pa.concat_tables([state["raw"], pa.table({"step": [step]})])
print(model.coef_.tolist(), seen["step"].tolist(), state["raw"]["step"].to_pylist())
print(f"first step {first}", file=sys.stderr)
"""


@pytest.mark.system
def test_a_training_that_is_killed_between_saves_ends_with_equal_values(tmp_path: Path) -> None:
    def train(folder: str, kill_at: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HETERO_")}
        command = [sys.executable, "-c", TRAINING, str(kill_at)]
        return subprocess.run(
            command, cwd=tmp_path / folder, env=environment, capture_output=True, text=True, check=False
        )

    whole = train("whole", -1)
    assert train("killed", 8).returncode == -signal.SIGKILL
    resumed = train("killed", -1)
    assert (whole.returncode, resumed.returncode) == (0, 0), whole.stderr + resumed.stderr
    assert "first step 5\n" in resumed.stderr
    assert resumed.stdout == whole.stdout
    assert f"{list(range(12))} {list(range(12))}" in whole.stdout
