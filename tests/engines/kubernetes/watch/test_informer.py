import logging
import time

import pytest

from hetero_airflow.engines.kubernetes.watch import informer as mirror_module
from hetero_airflow.engines.kubernetes.watch.informer import Informer
from tests.engines.kubernetes.fake_api import a_node, a_pod, connect
from tests.waiting import eventually


@pytest.fixture
def watch(api):
    mirrors = []

    def start(endpoint="list_node", read=lambda item, before: item["metadata"]["name"], **arguments):
        made = []

        def new_client():
            made.append(connect(api))
            return made[-1]

        mirror = Informer(
            "things", new_client, lambda client: getattr(client, endpoint), read, **{"delay_s": 0.02} | arguments
        )
        mirror.clients = made
        mirrors.append(mirror)
        mirror.start()
        return mirror

    yield start
    for mirror in mirrors:
        mirror.stop()


def names(mirror, *expected):
    return eventually(lambda: sorted(mirror.values()) == sorted(expected) or None)


@pytest.fixture
def mirror(api, watch):
    """One that knows the node a."""
    api.put("nodes", a_node("a"))
    mirror = watch()
    names(mirror, "a")
    return mirror


def lists(api):
    return [query for method, _, query in api.requests if "watch" not in query]


def test_objects_that_exist_come_and_go_are_known(api, watch):
    api.put("nodes", a_node("a"))
    mirror = watch()
    assert mirror.wait(600)
    names(mirror, "a")
    api.put("nodes", a_node("b"))
    names(mirror, "a", "b")
    api.drop("nodes", "a")
    names(mirror, "b")
    assert (mirror.problem, len(lists(api))) == (None, 1)


def test_a_long_list_is_read_in_pages(api, watch, monkeypatch):
    monkeypatch.setattr(mirror_module, "PAGE_SIZE", 3)
    for number in range(8):
        api.put("nodes", a_node(f"n{number}"))
    mirror = watch()
    names(mirror, *(f"n{number}" for number in range(8)))
    assert [query.get("continue") for query in lists(api)] == [None, "3", "6"]


def test_an_empty_list_is_one(api, watch):
    mirror = watch()
    assert mirror.wait(600)
    api.put("nodes", a_node("a"))
    names(mirror, "a")


def test_a_connection_that_is_cut_goes_on_where_it_was(api, mirror, caplog):
    for name in "bcd":
        api.cut()
        api.put("nodes", a_node(name))
        names(mirror, *"abcd"[: "abcd".index(name) + 1])
    assert (len(lists(api)), caplog.text) == (1, "")


def test_a_version_that_is_too_old_is_listed_again_and_what_is_gone_is_gone(api, watch):
    deleted = []
    for name in "ab":
        api.put("nodes", a_node(name))
    mirror = watch(on_delete=deleted.append)
    names(mirror, "a", "b")
    api.objects["nodes"].pop(("", "a"))  # unheard of: its deletion was compacted away
    api.compact()
    names(mirror, "b")
    eventually(lambda: deleted == ["a"])
    assert mirror.problem is None


def test_after_an_outage_the_values_are_current_only_after_a_complete_list(api, mirror):
    """A server that has just restarted may open the watch of an old version, and refuse it later."""
    api.status = 503
    api.cut()
    eventually(lambda: mirror.status == 503)
    api.list_status, api.status = 500, None
    eventually(lambda: mirror.status == 500)
    watches = sum("watch" in query for _, _, query in api.requests)
    api.put("nodes", a_node("b"))
    refused = len(lists(api))
    eventually(lambda: len(lists(api)) >= refused + 3)
    assert (mirror.problem is not None, mirror.values()) == (True, ["a"])
    assert sum("watch" in query for _, _, query in api.requests) == watches
    api.list_status = None
    names(mirror, "a", "b")
    eventually(lambda: mirror.problem is None and mirror.outages == 1)


def test_a_version_that_expires_is_listed_again_at_once(api, watch):
    api.put("nodes", a_node("a"))
    mirror = watch(delay_s=600)
    names(mirror, "a")
    api.put("nodes", a_node("b"))  # the version is that of an event
    names(mirror, "a", "b")
    api.is_expiring = True
    api.compact()
    api.put("nodes", a_node("c"))
    names(mirror, "a", "b", "c")


def test_a_watch_that_was_silent_for_long_counts_as_an_outage(api, watch, monkeypatch):
    """The server was frozen: nodes could not send their reports either."""
    monkeypatch.setattr(mirror_module, "READ_S", 0.5)
    monkeypatch.setattr(mirror_module, "CONNECT_S", 0.5)
    api.put("nodes", a_node("a"))
    mirror = watch()
    names(mirror, "a")
    assert mirror.outages == 0
    with api.frozen():
        time.sleep(1.5)
    eventually(lambda: mirror.outages == 1)
    assert (len(lists(api)), mirror.problem) == (1, None)


def test_bookmarks_spare_the_listing_after_a_compaction(api, mirror):
    for number in range(5):
        api.put("pods", a_pod(f"p{number}"))  # of no interest to this watch, but versions go on
    eventually(lambda: api.marked == api.newest)
    api.oldest = api.newest
    api.cut()
    api.put("nodes", a_node("b"))
    names(mirror, "a", "b")
    assert len(lists(api)) == 1


@pytest.mark.parametrize(
    ("status", "phrase"), [(401, "credentials are refused"), (403, "ClusterRole"), (500, "it is 500")]
)
def test_a_refusal_is_logged_once_and_known_objects_are_kept(api, mirror, caplog, status, phrase):
    caplog.set_level(logging.INFO)
    api.status = status
    api.cut()
    eventually(lambda: mirror.status == status)
    clients = len(mirror.clients)
    assert phrase in mirror.problem
    eventually(lambda: len(mirror.clients) >= clients + 2)  # credentials are read again each time
    assert mirror.values() == ["a"]
    assert len([record for record in caplog.records if phrase in record.getMessage()]) == 1
    api.status = None
    api.put("nodes", a_node("b"))
    names(mirror, "a", "b")
    eventually(lambda: mirror.problem is None)


def test_a_server_that_is_away_is_a_problem_and_no_end(watch, api, caplog):
    api.host = "http://127.0.0.1:9"
    mirror = watch()
    eventually(lambda: mirror.problem and "Connection refused" in mirror.problem)
    assert not mirror.is_listed


def test_a_slow_server_is_waited_for(api, watch):
    api.delay_s = 2
    api.put("nodes", a_node("a"))
    mirror = watch()
    assert not mirror.wait(0.1)
    names(mirror, "a")


def test_a_watch_without_events_for_too_long_is_started_again(api, watch, monkeypatch, caplog):
    monkeypatch.setattr(mirror_module, "READ_S", 1)
    api.mark_every_s = 10
    api.put("nodes", a_node("a"))
    mirror = watch()
    names(mirror, "a")
    eventually(lambda: sum("watch" in query for _, _, query in api.requests) >= 3)
    assert (len(lists(api)), caplog.text) == (1, "")


def test_one_odd_object_hides_no_other(api, watch, caplog):
    def read(item, before):
        if item["metadata"]["name"] == "odd":
            raise ValueError("odd")
        return item["metadata"]["name"]

    for name in ("a", "odd", "b"):
        api.put("nodes", a_node(name))
    mirror = watch(read=read)
    names(mirror, "a", "b")
    assert "odd" in caplog.text


def test_an_equal_object_is_no_change(api, mirror):
    changes = mirror.changes
    api.put("nodes", a_node("a"))
    api.put("nodes", a_node("b"))
    names(mirror, "a", "b")
    assert mirror.changes == changes + 1


def test_selectors_are_the_servers_part(api, watch):
    api.put("pods", a_pod("a", labels={"hetero-airflow/lease": "l"}))
    api.put("pods", a_pod("b"))
    mirror = watch("list_pod_for_all_namespaces", query={"label_selector": "hetero-airflow/lease"})
    names(mirror, "a")
