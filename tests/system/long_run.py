"""A run of the DAG ``long``, whose task runs until a test lets it end."""

from uuid import uuid4


class LongRun:
    """A run whose task holds both GPUs by now, or other devices.

    :ivar id: of the run
    :ivar pid: the process of its first try
    """

    def __init__(self, airflow, device="gpu:2"):
        self._airflow = airflow
        self._file = airflow.home / f"end-{uuid4().hex}"
        self.id = airflow.trigger("long", {"until": str(self._file), "device": device})
        marker = airflow.home / f"{self.id.replace(':', '')}.1.pid"
        airflow.wait_until(lambda: marker.exists() and marker.read_text(), "the task to run")
        self.pid = int(marker.read_text())

    def let_end(self):
        """Let the task end, in whichever process and try it runs."""
        self._file.touch()

    def wait(self):
        """The state of the run, once it is over."""
        return self._airflow.wait_for_run("long", self.id)

    def try_number(self):
        (instance,) = self._airflow.tasks("long", self.id)
        return instance["try_number"]
