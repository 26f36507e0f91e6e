"""An Airflow whose page has something to show, and a browser that is logged in."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from local_airflow import USER, LocalAirflow
from playwright.sync_api import Browser, Page, sync_playwright

from hetero_airflow.model.device import Telemetry
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import a_device, a_worker

DAGS = Path(__file__).parent / "page_dags"
DAG = "train_models"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
]
SECONDS = 1000.0
"""Playwright counts in milliseconds."""


@contextmanager
def page_airflow(home: Path, users: str = f"{USER}:admin,viewer:viewer") -> Iterator[LocalAirflow]:
    """An Airflow with two simulated A100s, a run that wants more of them, and two more workers in the store."""
    settings = {"PAGE_GO": str(home / "go"), "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": users}
    components = ("api-server", "scheduler", "dag-processor")
    airflow = LocalAirflow(home, DAGS, simulated="nvidia/a100-80gb:2", settings=settings, components=components)
    with airflow:
        seen = [
            WorkerSeen(
                a_worker("rack-7-node-1", labels={"hetero/site": "east", "hetero/rack": "7"}),
                (Telemetry(device_id="GPU-0", utilization=0.02, power_w=61, temperature_c=33),),
            ),
            WorkerSeen(
                a_worker(
                    "rack-8-node-1", labels={"hetero/site": "east", "hetero/rack": "8"}, devices=(a_device("GPU-9"),)
                )
            ),
        ]
        airflow.store().record(seen, datetime.now(UTC))
        yield airflow
        (home / "go").touch()  # else the scheduler waits for its task


def start_run(airflow: LocalAirflow) -> str:
    """A run of the DAG, once its urgent task holds the devices and the others wait with a reason; returns its id."""
    run_id = airflow.trigger(DAG)
    store = airflow.store()

    def is_ready() -> bool:
        snapshot = store.snapshot()
        history = store.request_history(DAG, run_id, "fit", 3)
        return bool(snapshot.leases) and history is not None and bool(history.decisions)

    airflow.wait_until(is_ready, "one task to hold the devices and another to wait")
    return run_id


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium.

    It makes the user's runtime directory, which the other tests must not find: it gets one of its own.
    """
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as runtime:
        environment = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, env=environment)
        yield made
        made.close()


def log_in(made: Browser, airflow: LocalAirflow, user: str = USER, **options: object) -> Page:
    """A new page of this user, on Airflow's home page."""
    page = made.new_page(viewport={"width": 1280, "height": 900}, **options)
    page.set_default_timeout(60 * SECONDS)
    password = json.loads((airflow.home / "passwords.json").read_text())[user]
    page.goto(f"{airflow.url}/auth/login")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/auth/" not in url)
    return page
