"""Waits for a checkpoint of another task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import StartTriggerArgs

from hetero_airflow.checkpoints.index import Index
from hetero_airflow.errors import CheckpointStoreUnavailable
from hetero_airflow.sensors.checkpoint_condition import CheckpointCondition
from hetero_airflow.sensors.checkpoint_source import CheckpointSource, WatchedCheckpoint, parse_watched_url
from hetero_airflow.sensors.checkpoint_trigger import CHECKPOINT, CLASSPATH, ERROR, CheckpointTrigger, url_argument


class CheckpointSensor(BaseSensorOperator):
    """Succeeds when a task has published a checkpoint that meets all that is given; returns it as a dict.

    Deferrable by default, and then started in the triggerer: it takes no worker while it waits, and all that wait
    in one triggerer look at the store together, at most ten times a second. Of a task that was cleared, the
    checkpoints of its earlier life count until its new one has begun.

    :param of_task: whose checkpoints; template
    :param of_dag: its DAG; None: the sensor's own; template
    :param run_id: of the DAG run; None: the sensor's own; template
    :param map_index: of a mapped task's instance; template
    :param step: at least
    :param metric: a metric of the checkpoint that is above and/or below a bound
    :param above: lower bound of the metric, itself excluded
    :param below: upper bound of the metric, itself excluded
    :param younger_than: published less than this ago: seconds, a timedelta, or a text such as ``10m``
    :param complete: the task's work is done, nothing comes after it
    :param url: where the task publishes, if it has ``checkpoint={"url": ...}``; None: ``[hetero] checkpoint_url``. A
        task keeps the URL that it began with, until a clear starts it anew
    :param deferrable: False: poke, in the mode and at the interval of Airflow's sensors
    :raises RequestError: when the DAG file is parsed, if there is nothing to wait for or it can never come
    :raises SettingsError: when the DAG file is parsed, if the URL can't be read or has no store

    >>> CheckpointSensor(task_id="good", of_task="train", metric="accuracy", above=0.9, step=1000)
    <Task(CheckpointSensor): good>
    """

    template_fields: Sequence[str] = ("of_task", "of_dag", "run_id", "map_index")

    def __init__(
        self,
        *,
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
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
        """Wait in the triggerer; only a mapped sensor, or one that pokes, comes here at all."""
        if not self.deferrable:
            return super().execute(context)
        return self._wait()

    def _wait(self) -> NoReturn:
        trigger = CheckpointTrigger(**self._arguments())
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Whether there is such a checkpoint now, by one request."""
        watch = WatchedCheckpoint(self.of_dag, self.of_task, self.run_id, int(self.map_index), self.url)
        try:
            published = CheckpointSource().read(watch)
        except CheckpointStoreUnavailable as error:
            self.log.warning("%s It is asked again.", error)
            return False
        if published is None or not isinstance(published.content, Index):
            return False
        entry = CheckpointCondition.from_json(self.condition).met_in(published.content, datetime.now(UTC))
        return PokeReturnValue(True, published.announcement(entry)) if entry else False

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """The checkpoint that the trigger found.

        :raises AirflowException: why none can be waited for
        """
        if ERROR in event:
            raise AirflowException(event[ERROR])
        found: dict[str, Any] = event[CHECKPOINT]
        self.log.info("Step %d of %s, published %s", found["step"], found["path"], found["published_at"])
        return found
