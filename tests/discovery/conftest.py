import json
from collections.abc import Callable
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="session")
def fixture_text() -> Callable[[str], str]:
    """Content of a file below tests/fixtures."""
    return lambda name: (FIXTURES / name).read_text()


@pytest.fixture
def fixture_tree(tmp_path: Path) -> Callable[[str], Path]:
    """A folder with the files and links that a JSON fixture lists as path → content or ``-> target``."""

    def make(name: str) -> Path:
        for path, content in json.loads((FIXTURES / name).read_text()).items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith("-> "):
                file.symlink_to(content.removeprefix("-> "))
            else:
                file.write_text(content + "\n")
        return tmp_path

    return make


@pytest.fixture
def put_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts an executable shell script of that name on PATH."""

    def put(name: str, script: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return tool

    return put
