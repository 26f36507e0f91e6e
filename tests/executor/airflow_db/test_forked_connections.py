import os
import signal
import subprocess
import sys

import pytest
from sqlalchemy import NullPool, create_engine, text

SCHEDULER = """
import os, sys, time
from sqlalchemy import create_engine, text
from hetero_airflow.executor.airflow_db.forked_connections import close_in_children

engine = create_engine(sys.argv[1])
with engine.connect():
    pass  # as before the executor starts
close_in_children(engine)
connection = engine.connect()
connection.execute(text("CREATE TABLE IF NOT EXISTS pool (slots int)"))
connection.commit()
child = os.fork()
if child == 0:
    engine.dispose(close=False)  # as Airflow does
    with engine.connect() as own:
        own.execute(text("SELECT 1"))
        os.write(1, f"{os.getpid()}\\n".encode())  # whole: two processes write into one pipe
        time.sleep(60)
connection.execute(text("LOCK TABLE pool"))
os.write(1, b"locked\\n")
time.sleep(60)
"""


@pytest.mark.postgres
def test_the_locks_of_a_killed_scheduler_end_with_it_although_a_child_of_it_lives(make_postgres_database):
    url = make_postgres_database()
    command = [sys.executable, "-c", SCHEDULER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as scheduler:
        lines = [scheduler.stdout.readline().strip() for _ in range(2)]
        assert "locked" in lines
        (child,) = (int(line) for line in lines if line != "locked")
        try:
            scheduler.kill()
            scheduler.wait()
            engine = create_engine(url, poolclass=NullPool, connect_args={"options": "-c lock_timeout=5000"})
            with engine.connect() as connection:
                connection.execute(text("LOCK TABLE pool"))
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
