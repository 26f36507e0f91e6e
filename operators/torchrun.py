"""Training in several processes with torchrun, on one worker or on the workers of a gang."""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack

from airflow.sdk import Context
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.xcom_arg import XComArg
from airflow.sdk.exceptions import AirflowFailException

from hetero_airflow.contract.notice import Stopped
from hetero_airflow.contract.task_lease import TaskLease, current_lease
from hetero_airflow.engines.host.cgroups import oom_kills
from hetero_airflow.errors import HeteroError, RequestError
from hetero_airflow.operators.device import DeviceOperator, DeviceTaskKeywords
from hetero_airflow.operators.gang_rendezvous import RendezvousMember, joined_rendezvous
from hetero_airflow.operators.rank_group import (
    RankGroup,
    RanksFailed,
    evidence_of_end,
    failure_of_ranks,
    is_consequence,
    is_fenced_out,
)
from hetero_airflow.operators.requeue import has_preemption_notice
from hetero_airflow.recovery.classification import classify
from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.recovery.rules import Action, configured_rules
from hetero_airflow.runtime.rank_process import RankExit
from hetero_airflow.runtime.visible_devices import lease_environment
from hetero_airflow.settings import COMPRESS_GRADIENTS_VARIABLE, COMPRESSIONS, LEASE_VARIABLE

MAX_PROCESSES = 4096

MAX_RESULT_BYTES = 1 << 20

_NOTICE_TIMEOUT_S = 60.0
"""Within this time the executor learns that another member of a gang failed, and sends this one a notice. It detects a
lost worker within 15 s, and the notice comes with a heartbeat of the supervisor."""

_POLL_INTERVAL_S = 0.2

_CURED_BY_FEWER = frozenset({FailureClass.HARDWARE, FailureClass.NETWORK, FailureClass.LOST_WORKER})
"""Failures that one device may cause, so that fewer processes on the other devices may succeed."""


class TorchrunKeywords(DeviceTaskKeywords, total=False):
    """The keywords of a torchrun task, except its id and what it runs."""

    processes: int | str | None
    max_restarts: int
    env: Mapping[str, str] | XComArg | None
    compress_gradients: str | None


class TorchrunOperator(DeviceOperator):
    """Runs a script or a module in several processes by torchrun, on the leased devices of one worker, or of a gang.

    A rank that dies does not fail the task: torchrun starts all ranks again, and with
    `hetero_airflow.runtime.checkpoint` they resume from the last checkpoint. If torchrun gives up after `max_restarts`,
    and the script is not at fault, it starts again with one process less, without the device of the failed rank, down
    to the least number. After a preemption notice the ranks save, and the task goes on later, also with another number
    of processes. The task's log has the lines of all ranks, each with its rank.

    The task's result is what rank 0 writes as JSON to the file in ``HETERO_AIRFLOW_RESULT``.

    Expand it over ``node_rank=range(4)``, or over anything else with ``gang=4``, to train on four workers at once. The
    four task instances are placed together or not at all, ranks are numbered worker by worker, and all use the
    checkpoints of the first. If a rank dies, all ranks start again. If torchrun gives up on one worker, all instances
    stop and start again together.

    It also takes the arguments of `DeviceOperator`.

    :param script: path, relative to the DAG file's folder or absolute; template
    :param module: instead of a script, as for ``python -m``; template
    :param args: arguments of the script; template
    :param processes: a number, or a range ``min:max``; by default one for each device, and one on a CPU. A range means
        as many as there are devices, and the maximum on a CPU
    :param max_restarts: how often torchrun starts the ranks again
    :param env: additional environment variables of the ranks; template
    :param compress_gradients: how `hetero_airflow.runtime.data_parallel` sends gradients: ``fp16`` halves them, and
        ``powersgd`` sends two thin matrices for each matrix; by default whole
    :param node_rank: only to expand over: ``range(N)``
    :raises RequestError: when the DAG file is parsed, if the arguments contradict each other

    >>> TorchrunOperator(task_id="train", script="train.py", args=["--lr", "0.1"], processes="2:4", device="gpu:4")
    <Task(TorchrunOperator): train>
    >>> TorchrunOperator.partial(task_id="train_far", script="train.py", device="gpu:8").expand(node_rank=range(4))
    <Mapped(TorchrunOperator): train_far>
    """

    is_one_training: ClassVar[bool] = True
    template_fields: Sequence[str] = ("script", "module", "args", "env")

    def __init__(
        self,
        *,
        task_id: str,
        script: str | None = None,
        module: str | None = None,
        args: Any = (),
        processes: int | str | None = None,
        max_restarts: int = 3,
        env: Any = None,
        compress_gradients: str | None = None,
        node_rank: int | None = None,
        **kwargs: Unpack[DeviceTaskKeywords],
    ) -> None:
        super().__init__(task_id=task_id, **kwargs)
        if (script is None) == (module is None):
            found = "neither a script nor a module" if script is None else f"also the module {module!r}"
            raise RequestError("script", script, found=found, remedy="Give either script= or module=")
        if isinstance(args, str | bytes):
            raise RequestError("args", args, found="a single text", remedy='Give a list: args=["--lr", "0.1"]')
        if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
            raise RequestError(
                "max_restarts", max_restarts, found="no number of restarts", remedy="Give a whole number, 0 or more"
            )
        if compress_gradients not in (None, *COMPRESSIONS):
            remedy = f"Use {' or '.join(map(repr, COMPRESSIONS))}, or leave it out"
            raise RequestError("compress_gradients", compress_gradients, found="no such compression", remedy=remedy)
        self.script = script
        self.module = module
        self.args = args
        self.processes = processes
        self.max_restarts = max_restarts
        self.env = env
        self.compress_gradients = compress_gradients
        self.node_rank = node_rank
        self._range = parse_processes(processes)
        self._group: RankGroup | None = None

    def execute(self, context: Context) -> Any:
        """Train, and return what rank 0 wrote as the result.

        :raises RanksFailed: torchrun gave up
        """
        return self._run(context, lambda: self._train_on_lease(context))

    def on_kill(self) -> None:
        """Stop torchrun and its ranks. A preempted task goes on later."""
        if self._group is not None:
            self._group.end()
        super().on_kill()

    def _train_on_lease(self, context: Context) -> Any:
        lease = current_lease() if LEASE_VARIABLE in os.environ else None
        if lease is None or lease.gang is None:
            return self._train(lease)
        with joined_rendezvous(context, lease.gang, lease.id) as member:
            return self._train_together(lease, member)

    def _train(self, lease: TaskLease | None) -> Any:
        if self.node_rank is not None:
            raise AirflowFailException(
                RequestError(
                    "node_rank",
                    self.node_rank,
                    found="no lease of a gang",
                    remedy="Run the task with HeteroExecutor, and expand it over node_rank=range(N)",
                )
            )
        target = self._target()
        least, count = self._counts(lease)
        while True:
            try:
                return self._start(target, count, lease)
            except RanksFailed as error:
                failure_class = classify(error.evidence).failure_class
                if (
                    failure_class not in _CURED_BY_FEWER
                    or count <= least
                    or has_preemption_notice()
                    or is_fenced_out(error.evidence)
                ):
                    raise
                self.log.warning("%s\nTrying with %d processes.", error, count - 1)
                lease = without_device(lease, error.rank) if lease and lease.count == count else lease
                count -= 1

    def _train_together(self, lease: TaskLease, member: RendezvousMember) -> Any:
        gang = member.gang
        self.log.info(
            "Worker %d of %d of gang %s: the rendezvous is at %s, port %d",
            gang.rank, gang.size, gang.name, member.rendezvous.address, member.rendezvous.port,
        )  # fmt: skip
        try:
            return self._start(self._target(), self._counts(lease)[1], lease, member)
        except RanksFailed as error:
            if not is_consequence(error.evidence):
                raise
            self.log.warning("%s\nAnother worker's failure may be the cause. This one waits for a notice.", error)
            end = time.monotonic() + _NOTICE_TIMEOUT_S
            while not has_preemption_notice() and time.monotonic() < end:
                time.sleep(_POLL_INTERVAL_S)
            raise

    def _start(
        self, target: Sequence[str], count: int, lease: TaskLease | None, member: RendezvousMember | None = None
    ) -> Any:
        self.log.info("Starting %d processes of %s", count, target[-1] if self.module else target[0])
        kills = oom_kills()
        environment = self._environment(lease, count)
        with RankGroup(target, count, self.max_restarts, environment, self.log, member) as group:
            self._group = group
            try:
                exit_code = group.run(_is_incurable)
                stopped = [end for end in group.ends() if end.stopped is not None]
                if stopped and exit_code == 0:
                    steps = [end.saved_step for end in stopped if end.saved_step is not None]  # rank 0 has it
                    raise Stopped(step=max(steps, default=None), cause=str(stopped[0].stopped))
                if exit_code != 0:
                    raise failure_of_ranks(group, exit_code, target, count, oom_kills(kills))
                return _result(group.result)
            finally:
                self._group = None

    def _target(self) -> list[str]:
        if isinstance(self.args, str | bytes) or not isinstance(self.args, Sequence):
            found = f"a value of the type {type(self.args).__name__}"
            raise AirflowFailException(RequestError("args", self.args, found=found, remedy="Give a list of texts"))
        arguments = [str(argument) for argument in self.args]
        if self.script is None:
            return ["-m", str(self.module), *arguments]
        script = Path(self.script)
        if not script.is_absolute() and self.has_dag():  # type: ignore[no-untyped-call]
            script = Path(self.dag.fileloc).parent / script
        if not script.is_file():
            raise AirflowFailException(
                RequestError("script", str(script), found="no such file", remedy="Put it beside the DAG file")
            )
        return [str(script.absolute()), *arguments]

    def _counts(self, lease: TaskLease | None) -> tuple[int, int]:
        """The least number of processes, and the number to start with."""
        devices = lease.count if lease is not None and lease.kind != "cpu" else None
        least, most = self._range or (devices or 1, devices or 1)
        if devices is not None and least > devices:
            found = f"{devices} leased devices"
            error = RequestError("processes", self.processes, found=found, remedy="Ask for one device for each process")
            raise AirflowFailException(error)
        return least, most if devices is None else min(most, devices)

    def _environment(self, lease: TaskLease | None, count: int) -> dict[str, str]:
        authored = {str(name): str(value) for name, value in (self.env or {}).items()}
        environment = {**os.environ, **authored, COMPRESS_GRADIENTS_VARIABLE: self.compress_gradients or ""}
        if lease is not None:
            environment |= lease_environment(lease, environment)
            if lease.cores:
                environment["OMP_NUM_THREADS"] = authored.get("OMP_NUM_THREADS", str(max(1, len(lease.cores) // count)))
        return environment


def parse_processes(value: object) -> tuple[int, int] | None:
    """The least and the greatest number of processes; None means as many as there are devices.

    >>> parse_processes("2:4"), parse_processes(3), parse_processes(None)
    ((2, 4), (3, 3), None)

    :raises RequestError: the value is no number or range
    """
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,20})(?::(\d{1,20}))?", str(value)) if not isinstance(value, bool) else None
    if match is None:
        raise RequestError("processes", value, found="no number", remedy='Write 4, or a range: "2:4"')
    least, most = int(match[1]), int(match[2] or match[1])
    if not 1 <= least <= most <= MAX_PROCESSES:
        problem = "a range that ends before it begins" if most < least else f"a number outside 1 to {MAX_PROCESSES}"
        raise RequestError("processes", value, found=problem, remedy='Write 4, or a range: "2:4"')
    return least, most


def without_device(lease: TaskLease, rank: int | None) -> TaskLease:
    """The lease without the device of a rank, or without the last one if the rank is None."""
    if lease.kind == "cpu" or len(lease.ids) < 2:
        return lease
    left_out = len(lease.ids) - 1 if rank is None else rank
    ids = tuple(id_ for number, id_ in enumerate(lease.ids) if number != left_out)
    indexes = tuple(index for number, index in enumerate(lease.indexes) if number != left_out)
    return lease.model_copy(update={"ids": ids, "indexes": indexes})


def _is_incurable(end: RankExit) -> bool:
    """Whether no further start can cure a rank's failure. False if another rank's end caused it."""
    if not end.raised or end.lost:
        return False
    evidence = evidence_of_end(end)
    failure_class = classify(evidence).failure_class
    is_own_error = failure_class is FailureClass.CODE_ERROR  # a retry of the task may help, the same ranks again do not
    return is_fenced_out(evidence) or is_own_error or configured_rules(conf)[failure_class].action is Action.FAIL


def _result(path: Path) -> Any:
    try:
        content = path.read_bytes()[: MAX_RESULT_BYTES + 1]
        if len(content) > MAX_RESULT_BYTES:
            found = f"more than the limit of {MAX_RESULT_BYTES} bytes"
            raise HeteroError("the result of rank 0", found=found, remedy="Save it to a file")
        return json.loads(content)
    except FileNotFoundError:
        return None
