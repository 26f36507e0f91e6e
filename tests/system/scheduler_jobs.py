"""Which of several schedulers has which task, by Airflow's database."""

from typing import NamedTuple

from sqlalchemy import NullPool, bindparam, create_engine, text

_TASKS = text(
    "SELECT id, queued_by_job_id AS scheduler, state, try_number AS number FROM task_instance"
    " WHERE dag_id = :dag_id AND run_id IN :run_ids"
).bindparams(bindparam("run_ids", expanding=True))


class Owned(NamedTuple):
    """A task instance and the job id of the scheduler that queued it, or took it over."""

    scheduler: int | None
    state: str | None
    try_number: int


def newest_scheduler(engine):
    """The job id of the scheduler that was started last."""
    with engine.connect() as connection:
        return connection.execute(text("SELECT max(id) FROM job WHERE job_type = 'SchedulerJob'")).scalar_one()


def owned_tasks(engine, dag_id, run_ids):
    """Task instance id → the scheduler that has it."""
    with engine.connect() as connection:
        rows = connection.execute(_TASKS, {"dag_id": dag_id, "run_ids": list(run_ids)})
        return {str(row.id): Owned(row.scheduler, row.state, row.number) for row in rows}


def replace_scheduler(airflow, dag_id, *run_ids):
    """``kill -9`` the scheduler, and wait until the next one has taken over the tasks of these runs."""
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=NullPool)
    before = newest_scheduler(engine)
    airflow.kill("scheduler")
    airflow.launch("scheduler")
    airflow.wait_until(
        lambda: all(task.scheduler > before for task in owned_tasks(engine, dag_id, run_ids).values()),
        "the next scheduler to take the tasks over",
    )
