"""The code of the README and of the pages runs, or is marked with what it needs; then it is parsed at least.

A DAG of a page is read by Airflow, which calls no task; `tests/dags/test_local_runs.py` runs those of the README and
the tutorial. Commands are parsed by Bash, and those of Airflow and make are looked up.
"""

import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import DagBag

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"bash", "python", "text", "ini", "yaml", "json", "dockerfile", "toml"}
FRAGMENT = "a part of a script or of a DAG file"
NOT_RUN = {
    "README.md": FRAGMENT,
    "docs/gangs.md": FRAGMENT,
    "docs/recovery.md": FRAGMENT,
    "docs/local_runs.md": "leases a GPU of this machine",
}
"""Page → why the Python blocks that define no DAG are only compiled."""


class Block(NamedTuple):
    """A block of code: its page, first line, language and text."""

    page: str
    line: int
    language: str
    code: str


def _blocks():
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.S | re.M):
            code = "\n".join(line.removeprefix(match[1]) for line in match[3].splitlines()) + "\n"
            yield Block(str(page.relative_to(ROOT)), text.count("\n", 0, match.start()) + 2, match[2], code)


BLOCKS = list(_blocks())


def of(language):
    """The blocks of a language, as parameters of a test."""
    blocks = [block for block in BLOCKS if block.language == language]
    return pytest.mark.parametrize("block", blocks, ids=lambda block: f"{block.page}:{block.line}")


@pytest.fixture(scope="module")
def parser():
    return get_parser()


def test_every_block_says_its_language():
    assert {f"{block.page}:{block.line}" for block in BLOCKS if block.language not in LANGUAGES} == set()
    assert len(BLOCKS) > 60


@of("python")
def test_python_runs(block, tmp_path):
    code = compile(block.code, f"{block.page}:{block.line}", "exec")
    if "@dag" in block.code:
        path = tmp_path / "page.py"
        path.write_text(block.code)
        bag = DagBag(path)
        assert (bag.import_errors, len(bag.dags)) == ({}, 1)
    elif block.page not in NOT_RUN:
        exec(code, {"__name__": "page"})


def test_no_page_is_excused_without_need():
    fragments = {block.page for block in BLOCKS if block.language == "python" and "@dag" not in block.code}
    assert set(NOT_RUN) <= fragments


@of("bash")
def test_bash_is_bash_and_its_commands_are_there(block, parser):
    """Nothing is installed, sent or started: the blocks need hosts, clusters and a network."""
    code = re.sub(r"<(\w+)>", r"\1", block.code)
    done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
    assert done.stderr == ""
    for arguments in _commands(code, "airflow"):
        parser.parse_args(arguments)
    for arguments in _commands(code, "make"):
        (target, *_) = (word for word in arguments if "=" not in word)
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def _commands(code, name):
    """The arguments of each call of a program, up to the end of the command."""
    calls = re.findall(rf"(?:^|[&|;(]|=\S+) *{name} ([^#&|;()<>\n]*)", code.replace("\\\n", " "), re.M)
    return [shlex.split(call) for call in calls]


def test_the_commands_of_a_block_are_found():
    code = "A=1 airflow x --b  # c\n. env; for n in $(airflow y 1 | sort); do\nairflow \\\n z &\n"
    assert _commands(code, "airflow") == [["x", "--b"], ["y", "1"], ["z"]]
