from datetime import timedelta

import pytest

from hetero_airflow.engines.engine import LeasedProcess, Liveness
from hetero_airflow.engines.remote import remote_liveness
from hetero_airflow.model.grant import START_TIMEOUT_S
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.model.lease import Lease, LeaseState
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
    return LeasedProcess(LEASE, state, 100, "w1", None if seen_s is None else at(seen_s), True)


@pytest.mark.parametrize(
    ("what", "worker", "heartbeat", "expected"),
    [
        (use(seen_s=98), WORKER, WorkerHeartbeat(at(99), HERE), Liveness.ALIVE),
        (use("success", 98), WORKER, WorkerHeartbeat(at(99), HERE), Liveness.ALIVE),
        (use(seen_s=60), LOST, WorkerHeartbeat(at(80), HERE), Liveness.GONE),
        (use(seen_s=60), None, None, Liveness.GONE),
        (use(seen_s=60), LOST, WorkerHeartbeat(at(99), HERE), Liveness.ALIVE),
        (use(seen_s=95), WORKER, WorkerHeartbeat(at(99), ELSEWHERE), Liveness.GONE),
        (use(seen_s=97), WORKER, WorkerHeartbeat(at(99), ELSEWHERE), Liveness.UNKNOWN),
        (use(seen_s=97), WORKER, None, Liveness.UNKNOWN),
        (use(seen_s=97), WORKER, WorkerHeartbeat(at(80), HERE), Liveness.UNKNOWN),
    ],
)
def test_a_lease_is_judged_by_the_agent_then_by_its_worker_then_by_time(what, worker, heartbeat, expected):
    assert remote_liveness(what, worker, heartbeat, EPOCH, at(100)) is expected


def test_the_agents_last_report_counts_however_old_it_is():
    """An API server that is away silences agents and tasks alike, and takes no worker with it."""
    heartbeat = WorkerHeartbeat(at(100), HERE)
    for silent_s in (13, 20, 600):
        assert remote_liveness(use(seen_s=96), WORKER, heartbeat, EPOCH, at(100 + silent_s)) is Liveness.UNKNOWN


def test_a_task_that_was_taken_out_of_the_queue_of_its_worker_is_gone_once_it_can_not_begin():
    """Airflow has no start time of the task, so the agent's report can't be compared with it."""
    never = use("failed")
    assert remote_liveness(never, WORKER, WorkerHeartbeat(at(19), ELSEWHERE), EPOCH, at(20)) is Liveness.UNKNOWN
    assert remote_liveness(never, WORKER, WorkerHeartbeat(at(70), ELSEWHERE), EPOCH, at(90)) is Liveness.UNKNOWN
    assert remote_liveness(never, WORKER, WorkerHeartbeat(at(89), ELSEWHERE), EPOCH, at(90)) is Liveness.GONE


@pytest.mark.parametrize("worker", [WORKER, LOST])
def test_a_task_that_was_sent_may_start_while_its_token_is_good(worker):
    """On a worker that is lost, too: it may be back in time to find the message."""
    heartbeat = WorkerHeartbeat(at(0), ELSEWHERE)
    assert remote_liveness(use("queued"), worker, heartbeat, at(50), at(50 + START_TIMEOUT_S)) is Liveness.UNKNOWN
    assert remote_liveness(use("queued"), worker, heartbeat, at(50), at(65 + START_TIMEOUT_S)) is Liveness.GONE
