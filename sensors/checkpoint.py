"""Waits for a checkpoint of another task."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException
from airflow.triggers.base import StartTriggerArgs

from hetero_airflow.checkpoints.index import Index
from hetero_airflow.contract.local_run import is_local_run
from hetero_airflow.contract.operator_keywords import SensorKeywords
from hetero_airflow.errors import CheckpointStoreUnavailable
from hetero_airflow.sensors.checkpoint_condition import CheckpointCondition
from hetero_airflow.sensors.checkpoint_source import CheckpointSource, WatchedCheckpoint, parse_watched_url
from hetero_airflow.sensors.checkpoint_trigger import CHECKPOINT, CLASSPATH, ERROR, CheckpointTrigger, url_argument

_LOCAL_RUN_INTERVAL_S = 1.0


class CheckpointSensor(BaseSensorOperator):
    """Succeeds when a task has published a checkpoint that meets all that is given; returns it as a dict.

    Deferrable by default: it starts in the triggerer and uses no worker while it waits. All sensors in one triggerer
    share at most ten requests a second to the store. After a task is cleared, its earlier checkpoints count until it
    starts again.

    :param of_task: the task that publishes the checkpoints; template
    :param of_dag: its DAG; None for the sensor's own; template
    :param run_id: id of the DAG run; None for the sensor's own; template
    :param map_index: index of the instance of a mapped task; template
    :param step: least step
    :param metric: a metric of the checkpoint, with a bound above or below
    :param above: the metric must be greater than this
    :param below: the metric must be less than this
    :param younger_than: published less than this ago: seconds, a timedelta, or a text such as ``10m``
    :param complete: wait for the final checkpoint, after which nothing follows
    :param url: where the task publishes, if it has ``checkpoint={"url": ...}``; None for ``[hetero] checkpoint_url``.
        A task keeps its first URL until a clear starts it afresh
    :param deferrable: False to poke, with the mode and interval of Airflow's sensors
    :raises RequestError: when the DAG file is parsed, if the condition is empty or can never be met
    :raises SettingsError: when the DAG file is parsed, if the URL is invalid or has no store

    >>> CheckpointSensor(task_id="good", of_task="train", metric="accuracy", above=0.9, step=1000)
    <Task(CheckpointSensor): good>
    """

    template_fields: Sequence[str] = ("of_task", "of_dag", "run_id", "map_index")

    def __init__(
        self,
        *,
        task_id: str,
        of_task: str,
        of_dag: str | None = None,
        run_id: str | None = None,
        map_index: int | str = -1,
        step: int | None = None,
        metric: str | None = None,
        above: float | None = None,
        below: float | None = None,
        younger_than: float | str | timedelta | None = None,
        complete: bool = False,
        url: str | None = None,
        deferrable: bool = True,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(task_id=task_id, **kwargs)
        self.of_task = of_task
        self.of_dag = of_dag or "{{ ti.dag_id }}"
        self.run_id = run_id or "{{ run_id }}"
        self.map_index = map_index
        self.condition = CheckpointCondition.parse(
            step=step, metric=metric, above=above, below=below, younger_than=younger_than, complete=complete
        ).to_json()
        self.url = parse_watched_url(url)
        self.deferrable = deferrable
        if deferrable:
            self.start_from_trigger = True
            self.start_trigger_args = StartTriggerArgs(
                trigger_cls=f"{CLASSPATH}.CheckpointTrigger",
                trigger_kwargs=self._arguments(),
                next_method="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*self.template_fields, "condition")} | url_argument(self.url)

    def execute(self, context: Context) -> Any:
        """Wait in the triggerer. Only a mapped or a poking sensor runs this, or one in a local run."""
        if is_local_run():
            return self._wait_in_local_run(context)
        if self.deferrable:
            trigger = CheckpointTrigger(**self._arguments())
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return super().execute(context)

    def _wait_in_local_run(self, context: Context) -> Any:
        """Let the other tasks run until the checkpoint is there: one of them has to publish it.

        A local run has one task at a time, in any order.
        """
        self.mode, self.poke_interval = "reschedule", _LOCAL_RUN_INTERVAL_S
        try:
            return super().execute(context)
        except AirflowRescheduleException:
            self.log.info(
                "Local run: no checkpoint of %s with %s; other tasks run first",
                self.of_task,
                CheckpointCondition(**self.condition),
            )
            time.sleep(_LOCAL_RUN_INTERVAL_S)  # `dag.test()` does not wait for the time of a sensor that pokes
            raise

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Whether such a checkpoint exists now; sends one request."""
        watch = WatchedCheckpoint(self.of_dag, self.of_task, self.run_id, int(self.map_index), self.url)
        try:
            published = CheckpointSource().read(watch)
        except CheckpointStoreUnavailable as error:
            self.log.warning("%s The sensor asks again.", error)
            return False
        if published is None or not isinstance(published.content, Index):
            return False
        entry = CheckpointCondition(**self.condition).met_in(published.content, datetime.now(UTC))
        return PokeReturnValue(True, published.announcement(entry)) if entry else False

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """The checkpoint that the trigger found.

        :raises AirflowException: the trigger can't wait any longer; the text says why
        """
        if ERROR in event:
            raise AirflowException(event[ERROR])
        checkpoint: dict[str, Any] = event[CHECKPOINT]
        self.log.info("Step %d of %s, published %s", *(checkpoint[k] for k in ("step", "path", "published_at")))
        return checkpoint
