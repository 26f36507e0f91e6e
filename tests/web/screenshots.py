"""Writes a picture of each view of the page, in light and dark, wide and narrow: `make screenshots`."""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page

from tests.web.page_airflow import DAG, browser, log_in, page_airflow, start_run

WIDTHS = (1280, 390)
SETTLED_S = 2.5
"""A view has its first answers by then."""


def views(run_id: str) -> dict[str, str]:
    """Name of a view → its address."""
    task = f"/dags/{DAG}/runs/{run_id}/tasks/fit/mapped/3/plugin/hetero-placement"
    pages = {view: f"/plugin/hetero-devices?view={view}" for view in ("map", "table", "queue", "timeline", "usage")}
    return {**pages, "worker": "/plugin/hetero-devices?worker=rack-7-node-1", "placement": task, "home": "/"}


def shoot(page: Page, url: str, names: dict[str, str], folder: Path) -> None:
    """Write the pictures of all views."""
    for theme in ("light", "dark"):
        page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for name, path in names.items():
                page.goto(url + path)
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(SETTLED_S * 1000)
                page.screenshot(path=folder / f"{name}-{theme}-{width}.png")


def main() -> None:
    """Write the pictures into the folder that the first argument names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, page_airflow(Path(home)) as airflow, browser() as made:
        run_id = start_run(airflow)
        shoot(log_in(made, airflow), airflow.url, views(run_id), folder)
    print(f"The pictures are in {folder}")


if __name__ == "__main__":
    main()
