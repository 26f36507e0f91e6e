"""The structure that docs/architecture.md promises: one meaning for each class name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [ROOT / "hetero_airflow", ROOT / "operators", ROOT / "sensors"]
SHARED_NAMES: dict[str, str] = {}
"""Class names that are defined twice → the reason. A leading underscore does not make a name another one."""


def modules():
    paths = {path for package in PACKAGES for path in package.rglob("*.py")}
    links = {ROOT / "hetero_airflow" / "operators", ROOT / "hetero_airflow" / "sensors"}
    return sorted(path for path in paths if not links & set(path.parents))


def test_no_class_name_is_defined_twice():
    places = defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: files for name, files in places.items() if len(files) > 1 and name not in SHARED_NAMES} == {}


def test_every_folder_says_what_is_in_it():
    for path in modules():
        if path.name == "__init__.py":
            assert len(ast.get_docstring(ast.parse(path.read_text())) or "") > 40, path
