import gzip
import re

from hetero_airflow.web.page.bundle import BUNDLE, ICON, bundle_digest, react_apps

MAX_BYTES = 60_000


def test_the_bundle_is_small_and_asks_no_foreign_server():
    text = BUNDLE.read_bytes()
    assert len(gzip.compress(text)) <= MAX_BYTES
    assert re.findall(rb"https?://[\w.]+", text) == []
    assert b"http://www.w3.org" in ICON.read_bytes()


def test_the_bundle_sets_a_global_for_each_app_and_airflow_finds_it_by_a_relative_address():
    text = BUNDLE.read_text()
    for app in react_apps():
        assert re.search(rf"\b{app['name']}:", text), app["name"]
        assert app["bundle_url"] == f"hetero/page/hetero.js?v={bundle_digest()}"
    assert {app["destination"] for app in react_apps()} == {"nav", "task_instance", "dashboard"}
