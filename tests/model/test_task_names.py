from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.testing import a_pending

READABLE = "01a1fa1b-42d5-78df-9288-5b4d2de1f4f1"
HIDDEN = "02b2fa1b-42d5-78df-9288-5b4d2de1f4f2"
UNKNOWN = "03c3fa1b-42d5-78df-9288-5b4d2de1f4f3"


def test_a_log_names_tasks_of_its_own_dag_and_hides_those_of_other_teams():
    """A user who reads a log may read its DAG."""
    requests = (
        a_pending(READABLE, dag_id="etl", task_id="fit", map_index=3),
        a_pending(HIDDEN, dag_id="merger-with-acme", task_id="secret"),
    )
    text = f"in use by {READABLE}, {HIDDEN}, {UNKNOWN} and 4 more"
    expected = "in use by etl.fit[3] (run), a task of another DAG, another task and 4 more"
    assert TaskNames.of(Snapshot(1, pending=requests)).put_into(text, {"etl"}) == expected


def test_an_id_of_a_device_or_worker_stays():
    text = f"GPU-{READABLE} and MIG-{READABLE}/1 of node-{HIDDEN}"
    assert TaskNames([a_pending(READABLE)]).put_into(text) == text
