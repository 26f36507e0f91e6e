"""A snapshot with pending events is what the store shows after it has recorded them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.model.plan import Plan
from hetero_airflow.scheduling.pending_events import with_pending_events
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, RequestWithdrawn, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_worker

NAMES = st.sampled_from("abcdef")
EVENTS = st.lists(
    st.one_of(
        st.builds(lambda name, at_s: RequestSubmitted(a_pending(name, at_s=at_s)), NAMES, st.integers(0, 3)),
        st.builds(lambda name: RequestWithdrawn(name, "it is not wanted"), NAMES),
    )
)


@given(EVENTS, EVENTS)
def test_the_snapshot_is_as_the_store_will_show_it(before, pending_events):
    store = MemoryStore()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("a")), *before], EPOCH)
    store.commit(Plan((a_place("a", **{"GPU-0": 1000}),)), EPOCH, EPOCH)
    seen = with_pending_events(store.snapshot(), pending_events)
    store.record(pending_events, EPOCH)
    assert replace(seen, sequence=store.snapshot().sequence) == store.snapshot()


def test_without_events_it_is_the_same_snapshot():
    snapshot = MemoryStore().snapshot()
    assert with_pending_events(snapshot, ()) is snapshot
