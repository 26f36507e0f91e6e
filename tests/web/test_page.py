"""The page in Airflow's UI, in a real browser and a real Airflow."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from axe_playwright_python.sync_playwright import Axe
from local_airflow import USER, LocalAirflow
from playwright.sync_api import Browser, Page, expect

from hetero_airflow.model.plan import Plan
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from tests.web.page_airflow import CHROMIUM, DAG, SECONDS, browser, log_in, page_airflow, start_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")

HOSTILE = "<img src=x onerror=\"document.title='hit'\">"
expect.set_options(timeout=60 * SECONDS)
VIEWS = ("map", "table", "queue", "timeline", "usage")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    with page_airflow(tmp_path_factory.mktemp("airflow")) as made:
        yield made


@pytest.fixture(scope="module")
def run_id(airflow: LocalAirflow) -> str:
    return start_run(airflow)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def admin(chromium: Browser, airflow: LocalAirflow) -> Page:
    """The page of a logged-in administrator, which all tests share: a login takes seconds."""
    return log_in(chromium, airflow)


@pytest.fixture
def page(admin: Page) -> Iterator[Page]:
    """That page; afterwards its console must have no error."""
    errors: list[str] = []

    def note(message) -> None:
        if message.type == "error" and "401" not in message.text:
            errors.append(message.text)

    def note_error(error) -> None:
        errors.append(str(error))

    admin.on("console", note)
    admin.on("pageerror", note_error)
    yield admin
    admin.remove_listener("console", note)
    admin.remove_listener("pageerror", note_error)
    assert errors == []


def placement_of(airflow: LocalAirflow, run_id: str, task: str) -> str:
    return f"{airflow.url}/dags/{DAG}/runs/{run_id}/tasks/{task}/plugin/hetero-placement"


def test_a_waiting_task_says_why_and_behind_whom(airflow, run_id, page):
    page.goto(placement_of(airflow, run_id, "fit/mapped/3"))
    expect(page.get_by_text(re.compile(r"Waits for 1 × nvidia/a100 .* fourth in the queue"))).to_be_visible()
    expect(page.get_by_text(re.compile("Reason busy: asked .* found 0 of 2 free"))).to_be_visible()
    expect(page.get_by_role("link", name=f"{DAG}.fit[0]")).to_be_visible()
    expect(page.get_by_text("The start is unknown: the durations of train_models.evaluate")).to_be_visible()
    holder = page.get_by_role("region", name="Leases").get_by_role("link", name=f"{DAG}.evaluate")
    holder.click()
    page.wait_for_url("**/tasks/evaluate**")


def test_a_task_that_runs_says_what_it_holds(airflow, run_id, page):
    page.goto(placement_of(airflow, run_id, "evaluate"))
    expect(page.get_by_text(re.compile("^Holds nvidia/a100-80gb .simulated.* on "))).to_be_visible()
    expect(page.get_by_text("Chosen")).to_be_visible()
    expect(page.get_by_role("heading", name="Runs on devices")).to_be_visible()
    happened = page.get_by_role("region", name="What happened")
    expect(happened.get_by_text("The engine has taken the task with its lease")).to_be_visible(timeout=15_000)


def test_a_task_without_devices_shows_one_neutral_line(airflow, run_id, page):
    page.goto(placement_of(airflow, run_id, "report"))
    expect(page.get_by_text("This task asked for no device, or its history is no longer kept.")).to_be_visible()


def test_the_navigation_leads_to_the_map_and_the_address_keeps_the_choice(airflow, run_id, page):
    page.goto(airflow.url)
    page.get_by_role("link", name="Devices", exact=True).first.click()
    page.wait_for_url("**/plugin/hetero-devices")
    expect(page.get_by_text("2 leased")).to_be_visible()
    page.get_by_role("tab", name="Table").click()
    page.get_by_role("tabpanel", name="Table").get_by_label("Filter by rack").select_option("7")
    expect(page.get_by_text("3 devices")).to_be_visible()
    assert "view=table" in page.url
    assert "rack=7" in page.url
    page.reload()
    expect(page.get_by_text("3 devices")).to_be_visible()
    page.get_by_role("tabpanel", name="Table").get_by_label("Search by worker").fill("((")
    expect(page.get_by_text("0 devices")).to_be_visible()
    page.get_by_role("button", name="Clear filters").click()
    expect(page.get_by_text("simulated-nvidia-a100-80gb-0")).to_be_visible()
    page.wait_for_timeout(1 * SECONDS)  # the typed text is searched a moment later: the filters must not return
    assert page.url.endswith("?view=table")
    page.get_by_role("tab", name="Table").press("ArrowRight")
    expect(page.get_by_role("tab", name="Queue")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text("4 tasks of your DAGs wait")).to_be_visible()


def test_the_timeline_zooms_by_keyboard(airflow, run_id, page):
    page.goto(f"{airflow.url}/plugin/hetero-devices?view=timeline&hours=6")
    expect(page.get_by_text("The past 6 h")).to_be_visible()
    page.get_by_role("region", name="Leases per device").press("+")
    expect(page.get_by_text("The past 3 h")).to_be_visible()
    assert page.get_by_label(re.compile(f"{DAG}.evaluate .*still running")).count() == 2


def test_usage_is_added_up_by_a_chosen_subject(airflow, run_id, page):
    page.goto(f"{airflow.url}/plugin/hetero-devices?view=usage&days=1")
    expect(page.get_by_role("region", name="Sums").get_by_text(DAG)).to_be_visible()
    expect(page.get_by_role("listitem", name=re.compile("device-hours held by tasks"))).to_be_visible()
    page.get_by_label("Add up by").select_option("worker")
    expect(page.get_by_role("cell", name="rack-8-node-1")).to_be_visible()
    assert "by=worker" in page.url
    page.get_by_label("Time", exact=True).select_option("7")
    expect(page.get_by_role("columnheader", name="Held of what existed")).to_be_visible()
    assert "days=7" in page.url


def test_a_worker_is_drained_and_undrained_after_a_question(airflow, run_id, page):
    page.goto(f"{airflow.url}/plugin/hetero-devices?worker=rack-8-node-1")
    page.get_by_role("button", name="Drain this worker").click()
    page.get_by_label("Reason").fill(HOSTILE)
    assert airflow.store().snapshot().holds == ()
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_text(re.compile("The whole worker: drained since .*onerror.*by admin"))).to_be_visible()
    assert [hold.worker_id for hold in airflow.store().snapshot().holds] == ["rack-8-node-1"]
    page.get_by_role("button", name="Undrain this worker").click()
    page.get_by_role("button", name="Cancel").click()
    assert airflow.store().snapshot().holds != ()
    page.get_by_role("button", name="Undrain this worker").click()
    page.get_by_role("button", name="Undrain", exact=True).click()
    expect(page.get_by_text("None.", exact=True)).to_be_visible()
    assert airflow.store().snapshot().holds == ()
    page.get_by_role("button", name="Drain this worker").click()
    page.get_by_label("What to drain").select_option("rack-8-node-1/GPU-9")
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_text(re.compile("GPU-9: drained since .*by admin"))).to_be_visible()
    page.get_by_role("button", name="Undrain GPU-9").click()
    page.get_by_role("button", name="Undrain", exact=True).click()
    expect(page.get_by_text("None.", exact=True)).to_be_visible()
    assert page.title() != "hit"


def test_the_dashboard_has_a_card(airflow, run_id, page):
    page.goto(airflow.url)
    page.get_by_role("link", name="4 tasks waiting").click()
    page.wait_for_url("**/plugin/hetero-devices?view=queue")


def test_hostile_names_are_text(airflow, run_id, page):
    store = airflow.store()
    pending = a_pending(HOSTILE, dag_id=HOSTILE, task_id=HOSTILE, run_id=HOSTILE)
    store.record([WorkerSeen(a_worker(HOSTILE, labels={HOSTILE: HOSTILE}))], datetime.now(UTC))
    # the scheduler must not see it waiting: Airflow's ids of tasks are no such texts
    store.commit(Plan((a_place(HOSTILE, HOSTILE, **{"GPU-0": 1000}),)), EPOCH, EPOCH, [RequestSubmitted(pending)])
    for view in VIEWS:
        page.goto(f"{airflow.url}/plugin/hetero-devices?view={view}&search=onerror")
        page.wait_for_load_state("networkidle")
        expect(page.get_by_role("tab", name=view.capitalize())).to_be_visible()
    page.goto(f"{airflow.url}/plugin/hetero-devices?view=table&search=onerror")
    expect(page.get_by_text("in use (a DAG that you may not see)")).to_be_visible()
    assert page.title() != "hit"


def test_wrong_values_in_the_address_lose_nothing(airflow, run_id, page):
    page.goto(f"{airflow.url}/plugin/hetero-devices?view=nothing&offset=-1&hours=x")
    expect(page.get_by_text("2 leased")).to_be_visible()
    page.goto(f"{airflow.url}/plugin/hetero-devices?view=table&offset=-1")
    expect(page.get_by_text("simulated-nvidia-a100-80gb-0")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_our_views(airflow, run_id, page, theme):
    page.goto(airflow.url)
    page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    addresses = [f"{airflow.url}/plugin/hetero-devices?view={view}" for view in VIEWS]
    worker = f"{airflow.url}/plugin/hetero-devices?worker=rack-7-node-1"
    found = {}
    for address in (*addresses, worker, placement_of(airflow, run_id, "fit/mapped/3")):
        page.goto(address)
        page.wait_for_load_state("networkidle")
        page.locator(".hetero-airflow").filter(has_text=re.compile("free|device|Waits|Back to|past")).wait_for()
        results = Axe().run(page, context=".hetero-airflow")
        found |= {f"{address} {v['id']}": [n["html"][:200] for n in v["nodes"]] for v in results.response["violations"]}
    page.evaluate("localStorage.setItem('theme', 'light')")
    assert found == {}


def test_a_viewer_sees_the_page_and_no_button_that_writes(chromium, airflow, run_id):
    viewer = log_in(chromium, airflow, "viewer")
    viewer.goto(f"{airflow.url}/plugin/hetero-devices?worker=rack-7-node-1")
    expect(viewer.get_by_role("heading", name="rack-7-node-1")).to_be_visible()
    expect(viewer.get_by_text("GPU-0").first).to_be_visible()
    assert viewer.get_by_role("button", name="Drain this worker").count() == 0
    viewer.close()


def test_an_expired_login_leads_to_the_login_page(chromium, airflow, run_id):
    page = log_in(chromium, airflow, USER)
    page.goto(f"{airflow.url}/plugin/hetero-devices")
    expect(page.get_by_text("2 leased")).to_be_visible()
    page.context.clear_cookies()
    page.wait_for_url("**/auth/login**", timeout=60 * SECONDS)
    page.close()
