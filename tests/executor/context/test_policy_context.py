"""The policy context beside the store's snapshot."""

from datetime import timedelta
from types import SimpleNamespace

from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.executor.context.site_links import SiteLinks
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.run import RunEnd
from hetero_airflow.model.team_shares import TeamShares
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker

SHARES = TeamShares.parse("research=3")


class Dags:
    """Records the DAG ids of each call, and returns the given edges."""

    def __init__(self):
        self.requested, self.edges = [], {}

    def refresh(self, dag_ids):
        self.requested.append(sorted(dag_ids))
        return self.edges


def test_shares_are_known_before_anything_is_read():
    assert PolicyContext(SimpleNamespace(), SHARES, Dags(), SiteLinks({})).estimates.shares == SHARES


def test_edges_runs_and_shares_are_one_object_until_something_changes():
    store, dags = MemoryStore(), Dags()
    context = PolicyContext(store, SHARES, dags, SiteLinks({}))
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
