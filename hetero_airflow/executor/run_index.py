"""All runs of a scheduler: `Runs.handle` applies the table of `runs` to one of them, and the rest finds them."""

from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from airflow.executors.workloads import ExecuteTask

from hetero_airflow.executor import commands, events
from hetero_airflow.executor.run import LEASED, QUEUED, End, Phase, Run
from hetero_airflow.executor.runs import QUEUED_AGAIN, TABLE
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.run import MAX_TRANSITIONS, Transition
from hetero_airflow.store.store import TransitionsNoted

MAX_REMEMBERED = 10_000
"""Number of runs that are remembered because the engine has not reported their end."""


class Runs:
    """All runs of this scheduler: those that wait, those that the engine has, and what is left of ended ones."""

    def __init__(self) -> None:
        self.arrived: dict[Any, Run] = {}
        self.queued: dict[Any, Run] = {}
        """Those that wait for devices, in the order in which they came."""
        self.checking: dict[Any, Run] = {}
        self.held: dict[Any, Run] = {}
        self.sent: dict[Any, Run] = {}
        """A worker process that is killed reports no end, so its run may still be listed."""
        self.given_up: dict[Any, Run] = {}
        self.leased: dict[Any, Run] = {}
        self.ending: dict[str, Run] = {}
        """By lease: a task may have several."""
        self.unreported: dict[Any, Run] = {}
        """The last run of a task that was ended here. The engine may still report the end of its processes."""
        self._by_lease: dict[str, Run] = {}
        self._by_request: dict[str, Run] = {}
        """Those that wait for devices."""
        self._leases_of: Counter[str] = Counter()
        """Request → its leases that are not free yet."""
        self._unsaved: dict[str, deque[Transition]] = {}
        """By request."""
        self._groups: dict[Phase, dict[Any, Run]] = {
            Phase.ARRIVED: self.arrived,
            **dict.fromkeys(QUEUED, self.queued),
            Phase.CHECKING: self.checking,
            Phase.HELD: self.held,
            Phase.SENT: self.sent,
            Phase.GIVEN_UP: self.given_up,
            **dict.fromkeys(LEASED, self.leased),
            Phase.ENDING: self.ending,
        }

    def __contains__(self, key: object) -> bool:
        """Whether a run of the task waits or goes on, as Airflow's scheduler understands it."""
        groups = self.leased, self.arrived, self.queued, self.checking, self.held
        return any(key in group for group in groups)

    # -- how a run gets here -------------------------------------------------------------------------------------------

    def arrive(self, key: Any, request_id: str, workload: ExecuteTask | None) -> Run:
        """Airflow's scheduler gives this one a task, in the middle of a transaction."""
        return self._add(Run(key, request_id, Phase.ARRIVED, workload))

    def hold(self, workload: ExecuteTask) -> None:
        """Keep a task without a lease until Airflow's API server answers."""
        self._add(Run(workload.key, str(workload.ti.id), Phase.HELD, workload))

    def note_sent(self, key: Any, request_id: str, workload: ExecuteTask | None, now: datetime) -> None:
        """The engine has got a task without a lease, or follows one of a scheduler that died."""
        self._add(Run(key, request_id, Phase.SENT, workload, sent_at=now))
        if len(self.sent) > MAX_REMEMBERED:
            del self.sent[next(iter(self.sent))]

    # -- what happens to it --------------------------------------------------------------------------------------------

    def handle(self, run: Run, event: events.Event, now: datetime) -> list[commands.Command]:
        """Let the table handle an event; the commands to carry out, in order."""
        before, known_end, handler = run.phase, run.end, TABLE[type(event)].get(run.phase)
        if handler is None:
            self._note(run, Transition(now, type(event).__name__, before, "unexpected"))
            return []
        phase, following = handler(run, event, now)
        self._move(run, phase)
        if phase is not before or following or isinstance(event, events.HeartbeatLost):
            text = run.end.cause if run.end is not None and run.end is not known_end else ""
            self._note(run, Transition(now, type(event).__name__, phase, text))
        if before in LEASED and phase not in LEASED:
            self._note_end(run, is_reported=isinstance(event, events.EngineEnded))
        elif isinstance(event, events.EngineEnded) and event.is_end:
            self.unreported.pop(run.key, None)
        return [command for command in following if not self._has_done(run, command)]

    def _note(self, run: Run, transition: Transition) -> None:
        """Keep it for the store. What is found out again and again, such as a process that stays, counts once."""
        is_new = run.noted is None or transition != run.noted._replace(at=transition.at)
        run.noted = transition
        if is_new and (run.task is not None or run.lease is not None):
            self._unsaved.setdefault(run.request_id, deque(maxlen=MAX_TRANSITIONS)).append(transition)

    def _move(self, run: Run, phase: Phase) -> None:
        """Put a run where those of its phase are."""
        is_elsewhere = self._groups.get(phase) is not self._groups.get(run.phase)
        if is_elsewhere:
            self._remove(run)
        run.phase = phase
        if is_elsewhere:
            self._add(run)

    def _has_done(self, run: Run, command: commands.Command) -> bool:
        """Carry out a command that concerns runs alone; whether it is one."""
        if isinstance(command, commands.Again):
            self._wait_again(run, command)
        elif isinstance(command, commands.EndLeftOver):
            self._end_left_over(run.key, command.lease)
        return isinstance(command, commands.Again | commands.EndLeftOver)

    def _wait_again(self, run: Run, again: commands.Again) -> None:
        """Let a task wait that did not start. If Airflow has queued it again, it had started."""
        assert run.task is not None
        if run.key in self.queued:
            return
        task = run.task.again(again.lease, again.not_before)
        self._add(Run(run.key, run.request_id, Phase.RESOLVING, task.workload, task))

    def _end_left_over(self, key: Any, lease: Lease) -> None:
        """Free the lease of an earlier run. If another scheduler is ending it too, the store does it once."""
        end = End(QUEUED_AGAIN, is_known=False)
        self._add(Run(key, lease.request_id, Phase.ENDING, lease=lease, end=end))

    def _note_end(self, run: Run, *, is_reported: bool) -> None:
        self.unreported.pop(run.key, None)
        if not is_reported:
            self.unreported[run.key] = run
            if len(self.unreported) > MAX_REMEMBERED:
                del self.unreported[next(iter(self.unreported))]

    def _add(self, run: Run) -> Run:
        group, place = self._groups.get(run.phase), self._place(run)
        if group is not None:
            displaced = group.get(place)
            if displaced is not None:
                self._remove(displaced)
                displaced.phase = Phase.OVER
            group[place] = run
        if run.phase in LEASED or run.phase is Phase.ENDING:
            if run.held_lease.id not in self._by_lease:
                self._leases_of[run.request_id] += 1
            self._by_lease[run.held_lease.id] = run
        if run.phase in QUEUED:
            self._by_request[run.request_id] = run
        return run

    def _remove(self, run: Run) -> None:
        group = self._groups.get(run.phase, {})
        if group.get(self._place(run)) is run:
            del group[self._place(run)]
        if run.lease is not None and self._by_lease.get(run.lease.id) is run:
            del self._by_lease[run.lease.id]
            self._leases_of[run.request_id] -= 1
            if not self._leases_of[run.request_id]:
                del self._leases_of[run.request_id]
        if self._by_request.get(run.request_id) is run:
            del self._by_request[run.request_id]

    @staticmethod
    def _place(run: Run) -> Any:
        """Where a run is among those of its phase."""
        return run.held_lease.id if run.phase is Phase.ENDING else run.key

    # -- what others ask -----------------------------------------------------------------------------------------------

    def of_lease(self, lease_id: str) -> Run | None:
        """The run that goes on under a lease, or whose lease is about to end."""
        return self._by_lease.get(lease_id)

    def of_request(self, request_id: str) -> Run | None:
        """The run that waits for devices with a request."""
        return self._by_request.get(request_id)

    def request_ids(self) -> set[str]:
        """The requests whose leases are not free yet."""
        return {run.request_id for run in self._by_lease.values()}

    def has_lease_of(self, request_id: str) -> bool:
        """Whether a lease of the request is not free yet."""
        return request_id in self._leases_of

    def unsaved(self) -> list[TransitionsNoted]:
        """The transitions that the store does not have yet, of the requests that it knows."""
        ids = [id_ for id_ in self._unsaved if (run := self.of_request(id_)) is None or run.phase is Phase.WAITING]
        return [TransitionsNoted(id_, tuple(self._unsaved[id_])) for id_ in ids]

    def note_saved(self, saved: Iterable[TransitionsNoted]) -> None:
        """The store has them."""
        for event in saved:
            del self._unsaved[event.request_id]

    def reported(self, key: Any) -> Run | None:
        """The run of which the engine reports a state; None for a run that is not known here."""
        groups = self.leased, self.unreported, self.sent, self.given_up
        return next((group[key] for group in groups if key in group), None)
