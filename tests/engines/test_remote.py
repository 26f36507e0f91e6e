from datetime import timedelta

import pytest

from hetero_airflow.engines.engine import Liveness, Use
from hetero_airflow.engines.remote import START_S, judge
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.sight import WorkerSight
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.testing import EPOCH, a_worker

WORKER = a_worker("w1")
LOST = WORKER.model_copy(update={"state": WorkerState.LOST})
LEASE = Lease(
    id="lease", request_id="task", worker_id="w1", alternative=0, claims=(), token=1, state=LeaseState.ACTIVE,
    granted_at=EPOCH, expires_at=EPOCH + timedelta(seconds=15),
)  # fmt: skip
HERE, ELSEWHERE = frozenset({"lease"}), frozenset({"other"})


def at(seconds):
    return EPOCH + timedelta(seconds=seconds)


def use(state="running", seen_s=None):
    return Use(LEASE, state, 100, "w1", None if seen_s is None else at(seen_s), True)


@pytest.mark.parametrize(
    ("what", "worker", "sight", "expected"),
    [
        (use(seen_s=98), WORKER, WorkerSight(at(99), HERE), Liveness.ALIVE),
        (use("success", 98), WORKER, WorkerSight(at(99), HERE), Liveness.ALIVE),
        (use(seen_s=60), LOST, WorkerSight(at(80), HERE), Liveness.GONE),
        (use(seen_s=60), None, None, Liveness.GONE),
        (use(seen_s=60), LOST, WorkerSight(at(99), HERE), Liveness.ALIVE),
        (use(seen_s=95), WORKER, WorkerSight(at(99), ELSEWHERE), Liveness.GONE),
        (use(seen_s=97), WORKER, WorkerSight(at(99), ELSEWHERE), Liveness.UNKNOWN),
        (use(seen_s=97), WORKER, None, Liveness.UNKNOWN),
        (use(seen_s=97), WORKER, WorkerSight(at(80), HERE), Liveness.UNKNOWN),
    ],
)
def test_a_lease_is_judged_by_the_agent_then_by_its_worker_then_by_time(what, worker, sight, expected):
    assert judge(what, worker, sight, EPOCH, at(100)) is expected


@pytest.mark.parametrize("worker", [WORKER, LOST])
def test_a_task_that_was_sent_may_start_while_its_token_is_good(worker):
    """On a worker that is lost, too: it may be back in time to find the message."""
    sight = WorkerSight(at(0), ELSEWHERE)
    assert judge(use("queued"), worker, sight, at(50), at(50 + START_S)) is Liveness.UNKNOWN
    assert judge(use("queued"), worker, sight, at(50), at(65 + START_S)) is Liveness.GONE
