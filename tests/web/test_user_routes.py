from __future__ import annotations

from hetero_airflow.scheduling.advice.wanted_workers import WantedType
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_worker
from hetero_airflow.web.user_routes import MoreWorkers, UserRoutes

SMALL, LARGE = "2x-nvidia-a100-sxm4-40gb", "large"


def test_what_would_help_is_reported_by_type_and_of_one(engine, store):
    routes = UserRoutes(lambda: engine)
    hosts = (a_worker("a"), a_worker("b", labels={"hetero/type": LARGE}))
    store.record([*map(WorkerSeen, hosts), *(RequestSubmitted(a_pending(f"r{n}", "gpu:2")) for n in range(5))], EPOCH)
    all_types = (WantedType(SMALL, 3, 3), WantedType(LARGE, 0, 0))
    assert routes.wanted_workers() == MoreWorkers(workers=3, types=all_types, waiting=5, fitting=2, unservable=0)
    assert routes.wanted_workers(LARGE).workers == 0
    assert routes.wanted_workers(SMALL).types == all_types[:1]
    assert (routes.wanted_workers("no such type").workers, routes.wanted_workers("no such type").types) == (0, ())


def test_what_would_help_follows_the_queue(engine, store):
    routes = UserRoutes(lambda: engine)
    store.record([WorkerSeen(a_worker())], EPOCH)
    assert routes.wanted_workers().workers == 0
    store.record([RequestSubmitted(a_pending(f"r{n}", "gpu:2")) for n in range(2)], EPOCH)
    assert routes.wanted_workers().workers == 1
