"""The documentation builds, its links lead somewhere, and its reference has all that the code has."""

import os
import subprocess
import sys
from pathlib import Path

import docs_site
import pytest

from hetero_airflow.metrics.catalog import METRICS
from hetero_airflow.policies import POLICIES
from hetero_airflow.settings import OPTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages():
    return docs_site.reference_pages()


def test_the_site_builds_without_a_warning(tmp_path):
    """mkdocs warns of pages outside the menu, and of links and anchors that lead nowhere, but not with --quiet."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reference/settings.html" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("requests", ["device", "quota", "topology", "wait_timeout", "checkpoint"]),
        ("settings", [option.name for option in OPTIONS]),
        ("policies", list(POLICIES)),
        ("metrics", [*(metric.name for metric in METRICS), "hetero.requests.waiting"]),
        ("errors", ["HeteroError", "RequestError", "NoLeaseError"]),
    ],
)
def test_the_reference_has_a_row_for_each(pages, page, names):
    rows = [line for line in pages[f"reference/{page}.md"].splitlines() if line.startswith("| `")]
    assert {name for name in names if not any(row.startswith(f"| `{name}`") for row in rows)} == set()


def test_the_pages_in_the_checkout_are_those_of_the_code(pages):
    outdated = [path for path, text in pages.items() if (ROOT / "docs" / path).read_text() != text]
    assert outdated == [], "run `make docs`"


def test_the_reference_has_the_arguments_of_each_command(pages):
    text = pages["reference/commands.md"]
    assert "## explain" in text
    assert text.count("\n`airflow hetero ") == text.count("\n## ")
    assert text.count("| `--json` |") > 5


def test_the_settings_of_airflow_say_what_they_do_to_other_dags(pages):
    rows = [line for line in pages["reference/settings.md"].splitlines() if line.startswith("| `[")]
    assert len(rows) > 10
    assert all(cell.strip() for row in rows for cell in row.strip("|").split("|"))


def test_a_page_that_the_readme_names_is_a_link_in_the_site():
    assert "[deploy](deploy.md)" in docs_site.start_page()
    assert "`docs/" not in docs_site.start_page()
