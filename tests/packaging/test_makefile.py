"""`make install` in a checkout that was copied with its virtual environment."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """
import os, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    info = "package-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, "package-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("package.pth", os.getcwd())
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: package\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return "package-1.0-py3-none-any.whl"
"""
"""Stands for setuptools, which a new virtual environment need not have."""


def make(folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def test_a_copied_checkout_is_installed_again(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    shutil.copy(ROOT / "Makefile", first)
    (first / "requirements.lock").touch()
    (first / "pyproject.toml").write_text(PYPROJECT)
    (first / "backend.py").write_text(BACKEND)
    assert make(first, "install").returncode == 0
    shutil.copytree(first, second, symlinks=True)
    done = make(second, "install")
    assert done.returncode == 0, done.stdout + done.stderr
    script = "import backend, sys; print(backend.__file__, sys.prefix)"
    python = [second / ".venv/bin/python", "-P", "-c", script]
    places = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert places == [str(second / "backend.py"), str(second / ".venv")]
    assert make(second, "--question", "install").returncode == 0, "nothing is left to do"
