import sys

import pytest

from hetero_airflow.discovery.inventory_watch import InventoryWatch
from tests.waiting import eventually


@pytest.fixture
def watch(monkeypatch):
    """A watch over a program that replaces the discovery of this host."""
    opened = []

    def _watch(code, interval_s=0.4):
        monkeypatch.setattr("hetero_airflow.discovery.inventory_watch.COMMAND", (sys.executable, "-c", code))
        watch = InventoryWatch("host-a", {"zone": "a"}, interval_s=interval_s, probe_timeout_s=0.2)
        opened.append(watch)
        return watch

    yield _watch
    for inventory_watch in opened:
        inventory_watch.close()


def poll_until_logged(watch, caplog, text):
    """Until the log has the text; no inventory may come."""
    assert eventually(lambda: watch.poll() or text in caplog.text) is True


WORKER = (
    '{"worker": {"id": "host-a", "host": "host-a", "devices": [], "labels": {"zone": "a"}}, '
    '"problems": ["npu-smi hangs"]}'
)


def test_poll_never_blocks(watch):
    inventory_watch = watch("import time; time.sleep(3600)", interval_s=3600)
    assert [inventory_watch.poll() for _ in range(100)] == [None] * 100


def test_an_inventory_is_returned_and_its_problems_are_logged_once(watch, caplog):
    inventory_watch = watch(f"print('''{WORKER}''')", interval_s=2)
    assert eventually(inventory_watch.poll).worker.labels == {"zone": "a"}
    assert eventually(inventory_watch.poll).worker.id == "host-a"
    assert [record.getMessage() for record in caplog.records] == ["Discovery: npu-smi hangs"]


@pytest.mark.parametrize(
    "code", ["print('rubbish')", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 11)", "print('[' * 10**6)"]
)
def test_a_failed_discovery_keeps_the_last_inventory_and_is_logged(watch, caplog, code):
    inventory_watch = watch(code)
    poll_until_logged(inventory_watch, caplog, "the last inventory stays in use")


def test_a_hung_discovery_is_killed_and_started_again(watch, caplog):
    inventory_watch = watch("import time; time.sleep(600)")
    poll_until_logged(inventory_watch, caplog, "ended with code -9")


def test_this_host_is_discovered():
    watch = InventoryWatch("host-a", {"zone": "a"}, interval_s=60, probe_timeout_s=10)
    try:
        inventory = eventually(watch.poll)
    finally:
        watch.close()
    assert (inventory.worker.id, inventory.worker.labels) == ("host-a", {"zone": "a"})
    assert inventory.worker.cpu is not None
