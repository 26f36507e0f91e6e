"""What is known about the end of a run. The task, its supervisor or the scheduler gathers it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hetero_airflow.errors import shorten

MAX_CHAIN = 32
"""Limit of exceptions that are read from a chain."""

MAX_TEXT = 16_384
"""Characters of an exception's message that are read: half from its beginning, half from its end."""

MAX_LOG = 65_536
"""Characters from the end of a log that are read."""

_WRAPPERS = re.compile(r"(?:^|\.)(?:CalledProcessError|ChildFailedError|ProcessExitedException|BrokenProcessPool)$")
_WRAPPED = re.compile(r"(?i)non-?zero (?:exit|return) (?:code|status)|exited with (?:code|status) ")
_RAISED_LINE = re.compile(
    r"(?m)^(?:\[[\w ]{1,20}\]:? ?)?((?:[A-Za-z_]\w{0,80}\.){0,10}[A-Z]\w{0,80}(?:Error|Exception|Interrupt))(?::|$)"
)
"""The line that ends a traceback, also with torchrun's ``[rank0]:`` before it."""


@dataclass(frozen=True, slots=True)
class RaisedException:
    """One exception: its type as ``module.Name`` (for a built-in type only the name), and its text."""

    type: str
    text: str = ""

    @property
    def reports_other_process(self) -> bool:
        """Whether it only reports the end of another process, so that the log says more."""
        return _WRAPPERS.search(self.type) is not None or _WRAPPED.search(self.text) is not None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about the end of a run; unknown facts are left out.

    >>> Evidence(exit_code=-9).kill_signal, Evidence(exit_code=137).kill_signal, Evidence(exit_code=1).kill_signal
    (9, 9, None)
    """

    raised: tuple[RaisedException, ...] = ()
    """The exception that ended the task, then its causes and contexts."""
    log: str = ""
    """The end of the task's log."""
    exit_code: int | None = None
    """The process's exit code: negative, or 128 and more, for a signal."""
    oom_kills: int | None = None
    """Growth of the counter ``oom_kill`` of its cgroup during the run."""
    host_memory_bytes: int | None = None
    """Its limit of host memory, if it is known from another source than the lease."""
    xids: tuple[tuple[str, int], ...] = ()
    """(device id, XID) that the driver reported for the task's devices during the run."""
    is_gone: bool = False
    """Its worker or its process disappeared without a message."""
    notice: str | None = None
    """Why the task was asked to stop, if it was."""
    start_problem: str | None = None
    """Why the task never ran, in the words of its cluster."""
    worker_problem: str | None = None
    """Why its worker could not run it, in the words of its cluster."""
    hung_s: float | None = None
    """Seconds without progress, if the task was stopped for that."""

    @property
    def kill_signal(self) -> int | None:
        """The number of the signal that ended the process."""
        code = self.exit_code
        if code is None or code >= 0:
            return code - 128 if code is not None and 128 < code < 128 + 65 else None
        return -code

    @property
    def is_log_relevant(self) -> bool:
        """Whether the log counts: only if no exception says what happened, since a log may hold handled errors."""
        return not self.raised or self.raised[0].reports_other_process

    @property
    def final_exception_type(self) -> str | None:
        """The type of the exception that ended the task; from the log if only the log has it."""
        if not self.is_log_relevant:
            return self.raised[0].type
        names = [name for name in _RAISED_LINE.findall(self.log[-MAX_LOG:]) if _WRAPPERS.search(name) is None]
        return str(names[-1]) if names else None

    def texts(self) -> Iterator[tuple[str, str]]:
        """(place, text) of everything that counts, the task's own exception first."""
        for number, raised in enumerate(self.raised[:MAX_CHAIN]):
            where = "the exception" if number == 0 else "a cause of the exception"
            yield where, _both_ends(f"{raised.type}: {raised.text}")
        if self.is_log_relevant and self.log:
            yield "the log", self.log[-MAX_LOG:]


def evidence_of(error: BaseException) -> Evidence:
    """The evidence in an exception: its attribute `evidence` if it has one, else its chain."""
    evidence = getattr(error, "evidence", None)
    return evidence if isinstance(evidence, Evidence) else Evidence(raised=chain_of(error))


def chain_of(error: BaseException) -> tuple[RaisedException, ...]:
    """The exception, its causes, its contexts, and the members of groups, in that order, each once.

    >>> try:
    ...     try:
    ...         raise MemoryError
    ...     except MemoryError as error:
    ...         raise ValueError("no batch") from error
    ... except ValueError as error:
    ...     chain_of(error)
    (RaisedException(type='ValueError', text='no batch'), RaisedException(type='MemoryError', text=''))
    """
    chain: list[BaseException] = []
    queue: list[BaseException | None] = [error]
    while queue and len(chain) < MAX_CHAIN:
        current = queue.pop(0)
        if current is None or any(current is visited for visited in chain):
            continue
        chain.append(current)
        if isinstance(current, BaseExceptionGroup):
            queue += current.exceptions[:MAX_CHAIN]
        queue += [current.__cause__, None if current.__suppress_context__ else current.__context__]
    return tuple(RaisedException(_type_name(type(current)), _text(current)) for current in chain)


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return _both_ends(str(error))
    except Exception:  # noqa: BLE001  a foreign __str__ may raise anything
        return shorten(error)


def _both_ends(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]}\n{text[-MAX_TEXT // 2 :]}"
