"""The agent's loop: send new inventories, send a heartbeat every few seconds, and leave when told to stop."""

import logging
import random
import time
from collections.abc import Callable

from hetero_airflow.agent.connection import RefusedByServer, ServerConnection, ServerUnreachable
from hetero_airflow.agent.error_watch import ErrorWatch
from hetero_airflow.agent.lease_watch import LeaseWatch
from hetero_airflow.agent.protocol import (
    HEARTBEAT_S,
    Heartbeat,
    InventoryReport,
    RefusalCode,
    ServerReply,
    valid_readings,
)
from hetero_airflow.discovery.inventory_watch import InventoryWatch, with_missing_devices
from hetero_airflow.discovery.readings_watch import ReadingsWatch
from hetero_airflow.discovery.spot import SpotWatch
from hetero_airflow.discovery.used_devices import ANY_PROCESS, UsedDevices
from hetero_airflow.engines.host.cgroups import covered
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.host_data import HostData
from hetero_airflow.model.worker import SPOT_LABEL, Inventory, Worker, is_spot_worker

log = logging.getLogger(__name__)

FATAL_CODES = frozenset({RefusalCode.UNKNOWN_KEY, RefusalCode.SUPERSEDED, RefusalCode.ENROLMENT})
"""Refusals that waiting does not cure: a person has to act."""

MAX_RETRY_WAIT_S = HEARTBEAT_S
"""Longest wait between two tries, so that the heartbeats of all workers arrive soon after the server is back."""

LEAVE_TIMEOUT_S = 20.0
"""How long a leaving agent tries to reach a server that does not answer."""

CHECK_S = 0.5
"""Interval between two looks for what must not wait for the next heartbeat, as the end of a lease."""

REPORT_AGAIN_S = 60.0
"""When to send an inventory again that the server did not accept in full."""


def retry_wait_s(failures: int, rng: random.Random) -> float:
    """Seconds to wait after this number of failures in a row: a random part of a limit that doubles each time.

    If a thousand agents lose one server, some return at once and none waits longer than `MAX_RETRY_WAIT_S`
    ("full jitter": M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015; the minimum is ours).

    >>> [retry_wait_s(n, random.Random(1)) <= MAX_RETRY_WAIT_S for n in (1, 2, 10, 10_000)]
    [True, True, True, True]
    """
    return max(0.2, rng.uniform(0, min(MAX_RETRY_WAIT_S, 2.0 ** min(failures, 10))))


class Agent:
    """Sends the reports of one worker until it is told to stop.

    :param look_at_data: returns what the host's data cache holds
    :param pause: waits up to this many seconds; returns whether the agent was told to stop
    :param clock: seconds that only grow
    """

    def __init__(
        self,
        worker_id: str,
        engine: str,
        watch: InventoryWatch,
        leases: LeaseWatch,
        errors: ErrorWatch,
        server: ServerConnection,
        *,
        used: UsedDevices | None = None,
        spot: SpotWatch | None = None,
        readings: ReadingsWatch | None = None,
        look_at_data: Callable[[], HostData] = HostData,
        pause: Callable[[float], bool],
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker_id, self._engine = worker_id, engine
        self._watch, self._leases, self._errors, self._server = watch, leases, errors, server
        self._used = used or UsedDevices(ANY_PROCESS)
        self._spot = spot or SpotWatch(None)
        self._readings = readings
        self._look_at_data = look_at_data
        self._server_data: HostData | None = None
        """What the server knows of the data cache."""
        self._seen_notice = ""
        """The notice at the last step."""
        self._pause, self._rng, self._clock = pause, rng, clock
        self._worker: Worker | None = None
        """As it is reported."""
        self._found: Worker | None = None
        """As the last discovery found it, with the devices that local runs hold."""
        self._telemetry: tuple[Telemetry, ...] = ()
        self._server_inventory = ""
        """Name of the inventory that the server has, if it is the newest; empty if the newest has to be sent."""
        self._is_refused = False
        """The server did not accept the inventory."""
        self._is_kept_out = False
        """The server has the inventory, but gives the worker no task while processes of its ended leases run here."""
        self._send_again_at: float | None = None
        """When to send the inventory again although it has not changed."""
        self._failures = 0

    def run(self) -> None:
        """Run until the agent is told to stop and has left.

        :raises RefusedByServer: the server refuses this agent, and waiting does not help
        """
        self._spot.start()
        while not self._wait_and_ask(self._step()):
            pass
        self._leave()

    def _wait_and_ask(self, seconds: float) -> bool:
        """The same as `_wait`; asks for readings so early that the next step has them."""
        lead_s = 0.0 if self._readings is None else min(seconds, self._readings.lead_s)
        if self._wait(seconds - lead_s):
            return True
        if self._readings is None:
            return False
        self._readings.ask()
        return self._wait(lead_s)

    def _wait(self, seconds: float) -> bool:
        """Wait this long, or until the provider gives a notice or a lease ends; whether the agent was told to stop."""
        while seconds > CHECK_S and (self._spot.is_watching or self._leases.has_files):
            if self._pause(CHECK_S):
                return True
            if self._spot.notice != self._seen_notice or self._leases.is_file_gone():
                return False
            seconds -= CHECK_S
        return self._pause(seconds)

    def _step(self) -> float:
        """Send what is due; returns how long to wait before the next step."""
        self._seen_notice = self._spot.notice
        self._read_inventory()
        worker = self._worker
        if worker is None:
            return 0.2  # the first discovery takes half a second
        is_due = self._send_again_at is not None and self._clock() >= self._send_again_at
        if is_due or not (self._server_inventory or self._is_refused):
            reply = self._try(lambda: self._send_inventory(worker))
        else:
            reply = self._try(self._send_heartbeat)
            if reply is not None and not self._server_inventory and not self._is_refused:
                return 0.0
        if reply is None:
            return retry_wait_s(self._failures, self._rng)
        return CHECK_S if self._leases.unchecked.is_look_due else HEARTBEAT_S

    def _read_inventory(self) -> None:
        if self._leases.unchecked.is_look_due or self._used.has_changed:
            self._watch.refresh()
        self._leases.local_runs.look()
        inventory = self._watch.poll()
        if inventory is not None:
            self._take_inventory(inventory)
        if self._found is None:
            return
        worker = self._leases.local_runs.without_held(self._found)
        if worker != self._worker:
            self._worker, self._server_inventory, self._is_refused, self._send_again_at = worker, "", False, None

    def _take_inventory(self, inventory: Inventory) -> None:
        worker = covered(inventory.worker.model_copy(update={"engine": self._engine}))
        if self._worker is not None:
            worker = with_missing_devices(worker, self._worker)
        self._used.take(inventory.users, self._leases.current().include)
        self._found = self._used.without_used(worker)
        self._telemetry = valid_readings(inventory.telemetry)
        if self._readings is not None:
            self._readings.take(self._telemetry, self._watch.looked_at)
        self._errors.take_inventory(inventory)

    def _send_heartbeat(self) -> ServerReply:
        errors = self._errors.unconfirmed()
        inventory = self._server_inventory
        if self._readings is not None:
            self._telemetry = valid_readings(self._readings.readings())
        data = self._look_at_data()
        reply = self._exchange(
            Heartbeat(
                worker=self._worker_id,
                inventory=inventory,
                telemetry=self._telemetry,
                errors=errors,
                data=None if data == self._server_data else data,
                reclaimed=self._seen_notice,
            )
        )
        self._telemetry = ()
        if reply.inventory and reply.inventory == inventory:
            self._errors.confirm(errors)
            self._server_data = data
            self._leases.unchecked.note_checked(self._watch.looked_at)
        else:
            self._server_inventory = ""
        return reply

    def _send_inventory(self, worker: Worker) -> ServerReply:
        try:
            leases = self._leases.live_leases()
            report = InventoryReport(worker=worker, telemetry=self._telemetry, leases=leases)
            reply = self._server.send_inventory(report)
        except RefusedByServer as error:
            if error.code not in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                raise
            log.error("The server does not accept this worker's inventory: %s", error)  # noqa: TRY400  no bug of ours
            self._is_refused, self._send_again_at = True, self._clock() + REPORT_AGAIN_S
            return ServerReply()
        self._server_inventory, self._telemetry, self._server_data = reply.inventory, (), None
        self._is_refused, self._send_again_at = False, None
        self._take_leases(reply)
        if reply.inventory:
            self._leases.unchecked.note_checked(self._watch.looked_at)
        if leases and not reply.inventory and not self._is_kept_out:
            log.warning(
                "The worker gets no task yet, since processes of these leases still run here: %s.",
                ", ".join(sorted(leases)),
            )
        self._is_kept_out = not reply.inventory
        if reply.contested:
            log.warning(
                "Another worker reports the devices %s too, so only one of both gets tasks for them at a time. "
                "`airflow hetero workers` names it. Run one worker for each device.",
                ", ".join(reply.contested),
            )
        return reply

    def _exchange(self, heartbeat: Heartbeat) -> ServerReply:
        leases = self._leases.live_leases()
        reply = self._server.send_heartbeat(heartbeat.model_copy(update={"leases": leases}))
        self._take_leases(reply)
        return reply

    def _take_leases(self, reply: ServerReply) -> None:
        if self._leases.note_unknown(reply.unknown):
            self._watch.refresh()
        self._leases.end(reply.end)

    def _try(self, send: Callable[[], ServerReply]) -> ServerReply | None:
        """The reply; None if it failed and another try may succeed, which is logged once.

        :raises RefusedByServer: another try can't succeed
        """
        try:
            reply = send()
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
        return reply

    def _leave(self) -> None:
        """Take no new task, wait until the running tasks end, leave. A second signal to stop ends the wait."""
        log.info("Told to stop: worker %s takes no new task.", self._worker_id)
        answered_at, leases_left = self._clock(), -1
        while self._clock() - answered_at < LEAVE_TIMEOUT_S:
            self._seen_notice = self._spot.notice
            self._read_inventory()
            reply = self._try(lambda: self._exchange(self._leaving_heartbeat()))
            if reply is not None:
                answered_at = self._clock()
                # the server needs no inventory of a worker that takes no task
                self._leases.unchecked.note_checked(self._watch.looked_at)
                if not reply.leases:
                    log.info("Worker %s has left.", self._worker_id)
                    return
                if reply.leases != leases_left:
                    leases_left = reply.leases
                    log.info("Worker %s waits for %s leases to end.", self._worker_id, leases_left)
            wait_s = HEARTBEAT_S if reply is not None else retry_wait_s(self._failures, self._rng)
            if self._wait(wait_s):
                log.warning(
                    "Told to stop again: worker %s leaves now; its tasks will run on other workers.", self._worker_id
                )
                return
        log.warning("The API server does not answer: worker %s leaves without telling it.", self._worker_id)

    def _leaving_heartbeat(self) -> Heartbeat:
        """The heartbeat of an agent that was told to stop. On a spot machine this means that the machine ends."""
        is_spot = self._worker is not None and is_spot_worker(self._worker.labels)
        cause = f"its agent was told to stop, and it has the label {SPOT_LABEL}" if is_spot else ""
        return Heartbeat(worker=self._worker_id, is_leaving=True, reclaimed=self._seen_notice or cause)
