"""The page that is committed is the one that its source makes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "hetero_airflow" / "web" / "static" / "hetero.js"


@pytest.mark.system
def test_the_committed_page_is_built_from_its_source(tmp_path):
    ui = tmp_path / "ui"
    shutil.copytree(ROOT / "ui", ui, ignore=shutil.ignore_patterns("node_modules", "build", "api.ts"))
    (ui / "build").mkdir()
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the node of the extra `dev`
    environment = {**os.environ, "PATH": programs, "TMPDIR": str(tmp_path)}

    def run(*command):
        done = subprocess.run(command, cwd=ui, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True)
        if done.returncode and "npm error network" in done.stdout:
            pytest.skip("the registry of npm can't be reached, so the page was not built")
        assert done.returncode == 0, done.stdout

    run("npm", "ci", "--no-audit", "--no-fund")
    run(sys.executable, ROOT / "tools" / "page_schema.py", "build/openapi.json")
    run("npm", "run", "--silent", "types")
    run("npm", "run", "--silent", "check")
    run("npm", "run", "--silent", "build", "--", tmp_path / "hetero.js")
    assert (tmp_path / "hetero.js").read_text() == BUNDLE.read_text(), "run `make page`"
