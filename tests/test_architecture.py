"""The tables of docs/architecture.md are true: layers, folders, probes, policies and engines."""

import re
import tomllib
from pathlib import Path

from hetero_airflow.discovery import PROBES
from hetero_airflow.engines import ENGINES
from hetero_airflow.policies import POLICIES
from tools.run_table import BLOCK, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
AT_ROOT = ("operators", "sensors")


def rows(name):
    """The first two cells of each row of a marked table."""
    (table,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end {name} -->", PAGE, re.S)
    return [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in table.splitlines()[2:]]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def place(path):
    return ROOT / path if path.split("/")[0] in AT_ROOT else ROOT / "hetero_airflow" / path


def test_the_layers_are_those_that_the_linter_checks():
    (contract,) = (each for each in PROJECT["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    checked = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    assert [sorted(names(cell)) for _, cell in rows("layers")] == [sorted(layer) for layer in checked]
    assert contract["exhaustive"] is True


def test_every_path_that_it_names_is_there():
    for cell, _ in rows("folders"):
        for path in names(cell):
            assert place(path).exists(), path


def test_every_folder_and_module_of_the_package_is_named():
    named = {path.rstrip("/") for cell, _ in rows("folders") for path in names(cell)}
    present = {path.name for path in (ROOT / "hetero_airflow").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert present - {"__init__.py", "__pycache__"} <= named


def test_its_probes_policies_and_engines_are_those_of_the_code():
    listed = {names(table)[0]: names(cell) for table, cell in rows("rows")}
    assert listed == {"PROBES": list(PROBES), "POLICIES": list(POLICIES), "ENGINES": list(ENGINES)}


def test_every_module_that_its_text_names_is_there():
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE):
        if not path.startswith("tests/"):
            assert place(path).is_file(), path


def test_the_table_of_runs_is_that_of_the_code():
    assert BLOCK.search(PAGE)[0] == table(), "python tools/run_table.py writes it"
