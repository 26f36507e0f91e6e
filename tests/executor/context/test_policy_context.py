"""What policies know beside the store's snapshot: edges, shares, and the links of sites."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from hetero_airflow.errors import SettingsError
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.context.site_links import SiteLinks, parse_site_links
from hetero_airflow.model.host_data import HostData, held_name
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Place, Plan
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.team_shares import TeamShares
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker
from tests.sqlite_store import SqliteStore

SHARES = TeamShares.parse("research=3")
CONFIGURATION = Configuration(
    "assignment", "p", "hetero", 60, 1e6, 10, 180, 604800, 30, 60, 15, {}, "worker-a", SHARES,
    preempt_within_class=False, patience=False,
)  # fmt: skip


class Dags:
    """Records the DAG ids of each call, and returns the given edges."""

    def __init__(self):
        self.requested, self.edges = [], {}

    def refresh(self, dag_ids):
        self.requested.append(sorted(dag_ids))
        return self.edges


def test_shares_are_known_before_anything_is_read():
    assert PolicyContext(SimpleNamespace(), CONFIGURATION, Dags()).estimates.shares == SHARES


def test_a_policy_sees_what_is_configured():
    snapshot = PolicyContext(SimpleNamespace(), CONFIGURATION, Dags()).add_to(Snapshot(1))
    assert (snapshot.min_run_s, snapshot.preempts_within_class, snapshot.patience) == (15, False, False)
    assert snapshot.protects_unsaved


def test_edges_runs_and_shares_are_one_object_until_something_changes():
    store, dags = SqliteStore(), Dags()
    context = PolicyContext(store, CONFIGURATION, dags)
    running, waiting = a_pending("r1", dag_id="b"), a_pending("r2", dag_id="a")
    store.record([WorkerSeen(a_worker()), RequestSubmitted(running), RequestSubmitted(waiting)], EPOCH)
    commit = store.commit(Plan((a_place("r1", **{"GPU-0": 1000}),)), EPOCH, EPOCH)
    dags.edges = {("a", "x"): (("a", "y"),)}
    context.refresh()
    first = context.estimates
    assert (dags.requested, first.edges, first.shares) == ([["a", "b"]], dags.edges, SHARES)
    context.learn()
    context.refresh()
    assert context.estimates is first
    lease = commit.leases[0]
    store.renew([(lease.id, lease.token)], EPOCH)
    ended_at = EPOCH + timedelta(seconds=60)
    store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED, end=RunEnd.FINISHED)], ended_at)
    context.learn()
    assert (context.estimates.edges, context.estimates.shares) == (dags.edges, SHARES)
    assert context.estimates.used_device_s == {"b": {"nvidia/a100-sxm4-40gb": 60.0}}


def test_what_hosts_hold_is_read_from_the_store():
    store = SqliteStore()
    context = PolicyContext(store, CONFIGURATION, Dags())
    name = held_name("s3://lake/train/")
    store.record([WorkerSeen(a_worker(), data=HostData(held={name: 10})), WorkerSeen(a_worker("worker-b"))], EPOCH)
    assert context.add_to(store.snapshot()).held_data == {}
    context.read_data()
    assert context.add_to(store.snapshot()).held_data == {"worker-a": {name: 10}}


def a_host(name: str, site: str, **labels: str):
    return a_worker(name, labels={"hetero/site": site, **{f"hetero/{key}": value for key, value in labels.items()}})


@pytest.mark.parametrize("text", ["[]", "fast", '{"a": "10"}', '{"a": 0}', '{"a": true}', '{"a": 1e6}', '{"a": NaN}'])
def test_a_text_that_is_no_speed_is_an_error(text):
    with pytest.raises(SettingsError, match=r"\[hetero\] site_links = .*found no JSON object of Gbit/s"):
        parse_site_links(text, "[hetero] site_links")


def test_a_site_without_a_label_of_its_own_gets_what_is_configured():
    workers = (a_host("a", "berlin"), a_host("b", "berlin", site_gbps="100"), a_host("c", "oslo"), a_worker("d"))
    labelled = SiteLinks({"berlin": 2.5}).labelled(workers)
    assert [worker.labels.get("hetero/site_gbps") for worker in labelled] == ["2.5", "100", None, None]
    assert labelled[1:] == workers[1:]
    assert SiteLinks({}).labelled(workers) is workers


def test_an_unchanged_part_is_the_same_object():
    links, workers = SiteLinks({"berlin": 10}), (a_host("a", "berlin"), a_host("b", "berlin"))
    before = links.labelled(workers)
    assert links.labelled(workers) is before
    after = links.labelled((workers[0], a_host("b", "oslo")))
    assert after[0] is before[0]
    assert "hetero/site_gbps" not in after[1].labels


def test_a_gang_goes_where_the_links_are_fast_and_its_account_says_how_fast():
    hosts = tuple(a_host(name, site) for name, site in (("a", "berlin"), ("b", "oslo"), ("c", "turin")))
    gang = tuple(a_pending(f"g{n}", "gpu:2", gang="g", gang_size=2) for n in range(2))
    snapshot = Snapshot(0, workers=hosts, pending=gang)

    def decide(**gbps: float) -> tuple[list[str], str]:
        labelled = replace(snapshot, workers=SiteLinks(gbps).labelled(hosts))
        places = [
            decision for decision in PriorityPolicy().decide(labelled, EPOCH).decisions if isinstance(decision, Place)
        ]
        return [place.worker_id for place in places], places[0].account.summary.partition("joined by ")[2]

    assert decide() == (["a", "b"], "1.25 GB/s (anywhere)")
    assert decide(berlin=1, oslo=20, turin=15) == (["b", "c"], "1.88 GB/s (anywhere)")
