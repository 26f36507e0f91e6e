"""The folders are what pyproject.toml says they are, and nothing in them belongs to one machine."""

import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOVED = ("operators", "sensors")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


def tracked_files():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("no git checkout")
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name]


def packages_in(folder, name):
    """Every folder with Python code, by the name under which it is imported; links are followed."""
    files = [path for path in folder.iterdir() if path.suffix == ".py"]
    below = [path for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"]
    return ([name] if files else []) + [
        package for path in below for package in packages_in(path, f"{name}.{path.name}")
    ]


def test_the_list_of_packages_is_the_list_of_folders():
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(
        packages_in(ROOT / "hetero_airflow", "hetero_airflow")
    )


@pytest.mark.parametrize("name", MOVED)
def test_a_package_at_the_root_is_linked_and_mapped(name):
    link = ROOT / "hetero_airflow" / name
    assert (link.is_symlink(), str(link.readlink())) == (True, f"../{name}")
    assert PROJECT["tool"]["setuptools"]["package-dir"][f"hetero_airflow.{name}"] == name


@pytest.mark.parametrize("name", MOVED)
def test_the_bare_name_of_a_package_at_the_root_is_refused(name):
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ImportError: import hetero_airflow.{name} instead" in done.stderr


def test_no_file_names_the_machine_that_it_was_written_on():
    places = {str(ROOT), sysconfig.get_path("purelib"), sys.prefix} - {sys.base_prefix, "/usr"}
    named = [
        (path.relative_to(ROOT), place)
        for path in tracked_files()
        if path.is_file() and not path.is_symlink()
        for place in places
        if place.encode() in path.read_bytes()
    ]
    assert named == []


def test_the_lock_pins_by_name_and_version_alone():
    """No path, no address, no local version such as +cpu: they would bind it to one machine. ``1!`` is an epoch."""
    pins = [line for line in LOCK.splitlines() if not line.startswith("#")]
    pin = re.compile(r"[a-z0-9][a-z0-9-]*==([0-9]+!)?[0-9][a-z0-9.]*( ; [a-z_]+ [^/@+]+)?")
    assert [line for line in pins if not pin.fullmatch(line)] == []


def test_the_lock_leaves_the_cuda_libraries_to_torch():
    names = {line.split("==")[0] for line in LOCK.splitlines()}
    assert {name for name in names if name.startswith(("nvidia-", "cuda-", "triton"))} == {"nvidia-ml-py"}


def test_the_lock_holds_for_every_direct_dependency():
    project = PROJECT["project"]
    dependencies = [
        *project["dependencies"],
        *(dependency for extra in project["optional-dependencies"].values() for dependency in extra),
    ]
    dependencies += PROJECT["build-system"]["requires"]
    names = {re.match(r"[A-Za-z0-9-]+", dependency)[0] for dependency in dependencies} - {project["name"]}
    pinned = {line.split("==")[0] for line in LOCK.splitlines()}
    assert names - pinned == set()
