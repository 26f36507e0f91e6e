"""The wheel is whole: built from a copy of the tree, installed where the tree can't be seen, imported there."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
PARTS = ("hetero_airflow", "operators", "sensors")
REPORT = """
import json
from importlib.metadata import distribution
import hetero_airflow, hetero_airflow.operators, hetero_airflow.sensors
from hetero_airflow.registry import load
from hetero_airflow.policies import GROUP, POLICIES
from hetero_airflow.store import migrations
print(json.dumps({
    "files": [m.__file__ for m in (hetero_airflow, hetero_airflow.operators, hetero_airflow.sensors, migrations)],
    "operator": hetero_airflow.operators.DevicePythonOperator.__module__,
    "policy": load(GROUP, POLICIES, "fifo").__name__,
    "entry_points": sorted(e.group for e in distribution("hetero-airflow").entry_points),
}))
"""


def run(*command, cwd, **environment):
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    tree = tmp_path_factory.mktemp("tree")
    for name in PARTS:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (ROOT / "pyproject.toml", ROOT / "LICENSE", ROOT / "README.md"):
        if path.exists():
            shutil.copy(path, tree)
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, tree, cwd=out)
    (wheel_path,) = out.glob("hetero_airflow-*.whl")
    return wheel_path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """An interpreter with the wheel and all that this one has, but for the source tree."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # A path named in a .pth file gives its packages, but no .pth files of its own: no editable install.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    installed = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", installed, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return installed


def test_every_file_of_the_packages_is_in_the_wheel(wheel):
    expected = set()
    for name in PARTS:
        place = name if name == "hetero_airflow" else f"hetero_airflow/{name}"
        for path in (ROOT / name).rglob("*"):
            if (
                path.is_file()
                and path.suffix in (".py", ".ini", ".js", ".json", ".svg", ".typed", ".yml")
                and not path.is_symlink()
            ):
                expected.add(f"{place}/{path.relative_to(ROOT / name)}")
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    assert names == expected
    assert {"hetero_airflow/store/alembic.ini", "hetero_airflow/py.typed"} <= names
    assert any(name.startswith("hetero_airflow/store/migrations/versions/v0001") for name in names)


def test_the_installed_wheel_works_without_the_source_tree(python, tmp_path):
    report = json.loads(run(python, "-I", "-c", REPORT, cwd=tmp_path, AIRFLOW_HOME=str(tmp_path)).splitlines()[-1])
    site = python.parent.parent
    assert [Path(file).is_relative_to(site) for file in report["files"]] == [True] * 4
    assert (report["operator"], report["policy"]) == ("hetero_airflow.operators.python", "Fifo")
    assert report["entry_points"] == ["airflow.plugins", "airflow.policy", "apache_airflow_provider", "console_scripts"]
    models = run(python.parent / "hetero", "models", "--json", cwd=tmp_path, AIRFLOW_HOME=str(tmp_path))
    assert "nvidia" in models
