"""The agent's loop: discover, tell what is new, say every few seconds that the worker is there, leave when told to."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from hetero_airflow.agent.connection import RefusedByServer, ServerUnreachable
from hetero_airflow.agent.protocol import (
    HEARTBEAT_S,
    DeviceError,
    Heartbeat,
    InventoryReport,
    RefusalCode,
    ServerReply,
    valid_readings,
)
from hetero_airflow.discovery.inventory_watch import with_missing_devices
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.worker import Inventory, Worker

log = logging.getLogger(__name__)

FATAL_CODES = frozenset({RefusalCode.UNKNOWN_KEY, RefusalCode.SUPERSEDED, RefusalCode.ENROLMENT})
"""Refusals that no waiting cures: a person has to do something."""

MAX_RETRY_WAIT_S = HEARTBEAT_S
"""Between two tries while the server does not answer: when it is back, each worker is heard well before it is lost."""

LEAVE_TIMEOUT_S = 20.0
"""So long an agent that was told to stop tries to tell a server that does not answer."""

REPORT_AGAIN_S = 60.0
"""An inventory that the server did not take whole is told again after this."""


class InventorySource(Protocol):
    """What finds the host's devices: `hetero_airflow.discovery.inventory_watch.InventoryWatch`."""

    def poll(self) -> Inventory | None:
        """The newest inventory if one has just come in; never blocks."""
        ...


class LeaseProcesses(Protocol):
    """What finds the processes of leases: `hetero_airflow.agent.lease_watch.LeaseWatch`."""

    def look(self) -> frozenset[str]:
        """Ids of the leases that have processes here; never blocks."""
        ...

    def end(self, leases: Iterable[str]) -> None:
        """End their processes."""
        ...


class ErrorSource(Protocol):
    """What hears of devices' errors: `hetero_airflow.agent.error_watch.ErrorWatch`."""

    def take_inventory(self, inventory: Inventory) -> None:
        """Take note of what a discovery found."""
        ...

    def look(self) -> tuple[DeviceError, ...]:
        """What the server does not know yet; never blocks."""
        ...

    def forget(self, errors: Iterable[DeviceError]) -> None:
        """The server knows them."""
        ...


class AgentServer(Protocol):
    """What is told: `hetero_airflow.agent.connection.ServerConnection`."""

    def report(self, report: InventoryReport) -> ServerReply:
        """Tell the inventory."""
        ...

    def beat(self, heartbeat: Heartbeat) -> ServerReply:
        """Tell that the worker is there."""
        ...


def retry_wait_s(failures: int, rng: random.Random) -> float:
    """Seconds to wait after so many failures in a row: twice as long each time, and at random within that.

    Of a thousand agents that lost one server, some come back at once and none waits longer than `MAX_RETRY_WAIT_S`
    ("full jitter": M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015; the least wait is ours).

    >>> [retry_wait_s(n, random.Random(1)) <= MAX_RETRY_WAIT_S for n in (1, 2, 10, 10_000)]
    [True, True, True, True]
    """
    return max(0.2, rng.uniform(0, min(MAX_RETRY_WAIT_S, 2.0 ** min(failures, 10))))


class Agent:
    """Speaks for one worker until it is told to stop.

    :param pause: waits so many seconds, or less where there is something to do at once; whether it was told to stop
    :param clock: seconds that only grow
    """

    def __init__(
        self,
        worker_id: str,
        engine: str,
        watch: InventorySource,
        leases: LeaseProcesses,
        errors: ErrorSource,
        server: AgentServer,
        *,
        pause: Callable[[float], bool],
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker_id, self._engine = worker_id, engine
        self._watch, self._leases, self._errors, self._server = watch, leases, errors, server
        self._pause, self._rng, self._clock = pause, rng, clock
        self._worker: Worker | None = None
        self._telemetry: tuple[Telemetry, ...] = ()
        self._known = ""
        """Which inventory the server has, if it is ours; empty where ours is to be told."""
        self._is_refused = False
        """The server would not take the inventory."""
        self._is_kept_out = False
        """The server took the inventory, and gives the worker no task as long as processes of its leases are here."""
        self._again_at: float | None = None
        """When to tell the inventory once more although nothing has changed here."""
        self._failures = 0

    def run(self) -> None:
        """Until it is told to stop and has left.

        :raises RefusedByServer: the server will not hear this agent, and waiting does not help
        """
        while not self._pause(self._step()):
            pass
        self._leave()

    def _step(self) -> float:
        """Discover, tell; how long to wait before the next."""
        self._take_inventory()
        worker = self._worker
        if worker is None:
            return 0.2  # the first discovery takes half a second
        is_due = self._again_at is not None and self._clock() >= self._again_at
        if is_due or not (self._known or self._is_refused):
            heard = self._try(lambda: self._report(worker))
        else:
            heard = self._try(self._beat)
            if heard is not None and not self._known and not self._is_refused:
                return 0.0
        return retry_wait_s(self._failures, self._rng) if heard is None else HEARTBEAT_S

    def _take_inventory(self) -> None:
        inventory = self._watch.poll()
        if inventory is None:
            return
        found = inventory.worker.model_copy(update={"engine": self._engine})
        worker = with_missing_devices(found, self._worker) if self._worker is not None else found
        self._telemetry = valid_readings(inventory.telemetry)
        self._errors.take_inventory(inventory)
        if worker != self._worker:
            self._worker, self._known, self._is_refused, self._again_at = worker, "", False, None

    def _beat(self) -> ServerReply:
        errors = self._errors.look()
        beat = Heartbeat(worker=self._worker_id, inventory=self._known, telemetry=self._telemetry, errors=errors)
        heard = self._say(beat)
        self._telemetry = ()
        if heard.inventory and heard.inventory == self._known:
            self._errors.forget(errors)
        else:
            self._known = ""
        return heard

    def _report(self, worker: Worker) -> ServerReply:
        try:
            told = self._leases.look()
            heard = self._server.report(InventoryReport(worker=worker, telemetry=self._telemetry, leases=told))
        except RefusedByServer as error:
            if error.code not in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                raise
            log.error("The server does not take this worker's inventory: %s", error)  # noqa: TRY400  no bug of ours
            self._is_refused, self._again_at = True, self._clock() + REPORT_AGAIN_S
            return ServerReply()
        self._known, self._telemetry, self._is_refused, self._again_at = heard.inventory, (), False, None
        self._leases.end(heard.end)
        if told and not heard.inventory and not self._is_kept_out:
            log.warning(
                "The worker gets no task yet, since processes of these leases are here: %s.", ", ".join(sorted(told))
            )
        self._is_kept_out = not heard.inventory
        if heard.contested:
            log.warning("Devices %s get no task here: another worker offers them.", ", ".join(heard.contested))
            self._again_at = self._clock() + REPORT_AGAIN_S
        return heard

    def _say(self, beat: Heartbeat) -> ServerReply:
        heard = self._server.beat(beat.model_copy(update={"leases": self._leases.look()}))
        self._leases.end(heard.end)
        return heard

    def _try(self, ask: Callable[[], ServerReply]) -> ServerReply | None:
        """The answer; None where it is worth trying again, which is logged once.

        :raises RefusedByServer: it is not
        """
        try:
            heard = ask()
        except (ServerUnreachable, RefusedByServer) as error:
            if isinstance(error, RefusedByServer) and error.code in FATAL_CODES:
                raise
            self._failures += 1
            if self._failures == 1:
                log.warning("%s", error)
            return None
        if self._failures:
            log.info("The API server answers again, after %s tries.", self._failures)
        self._failures = 0
        return heard

    def _leave(self) -> None:
        """Take no new task, wait for those that are left, be gone. A second call to stop ends the waiting."""
        log.info("Told to stop: worker %s takes no new task.", self._worker_id)
        beat = Heartbeat(worker=self._worker_id, is_leaving=True)
        answered_at, left = self._clock(), -1
        while self._clock() - answered_at < LEAVE_TIMEOUT_S:
            heard = self._try(lambda: self._say(beat))
            if heard is not None:
                answered_at = self._clock()
                if not heard.leases:
                    log.info("Worker %s has left.", self._worker_id)
                    return
                if heard.leases != left:
                    left = heard.leases
                    log.info("%s leases are left on worker %s.", left, self._worker_id)
            wait_s = HEARTBEAT_S if heard is not None else retry_wait_s(self._failures, self._rng)
            if self._pause(wait_s):
                log.warning("Told to stop again: worker %s leaves; what runs here will run elsewhere.", self._worker_id)
                return
        log.warning("The API server does not answer: worker %s leaves without a word.", self._worker_id)
