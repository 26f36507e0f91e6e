"""What is known of how a run ended, gathered by whoever saw it: the task, its supervisor, or the scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hetero_airflow.errors import shorten

MAX_CHAIN = 32
"""Exceptions of a chain that are looked at."""

MAX_TEXT = 16_384
"""Characters of an exception's message that are looked at: half from its beginning, half from its end."""

MAX_LOG = 65_536
"""Characters from the end of a log that are looked at."""

_WRAPPERS = re.compile(r"(?:^|\.)(?:CalledProcessError|ChildFailedError|ProcessExitedException|BrokenProcessPool)$")
_WRAPPED = re.compile(r"(?i)non-?zero (?:exit|return) (?:code|status)|exited with (?:code|status) ")
_RAISED_LINE = re.compile(
    r"(?m)^(?:\[[\w ]{1,20}\]:? ?)?((?:[A-Za-z_]\w{0,80}\.){0,10}[A-Z]\w{0,80}(?:Error|Exception|Interrupt))(?::|$)"
)
"""The line that ends a traceback, also with torchrun's ``[rank0]:`` before it."""


@dataclass(frozen=True, slots=True)
class RaisedException:
    """One exception: its type as ``module.Name``, of built-in ones the name alone, and its text."""

    type: str
    text: str = ""

    @property
    def reports_other_process(self) -> bool:
        """Whether it only says that some other process ended, so that its log says more."""
        return _WRAPPERS.search(self.type) is not None or _WRAPPED.search(self.text) is not None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of how a run ended; what is not known is left out.

    >>> Evidence(exit_code=-9).kill_signal, Evidence(exit_code=137).kill_signal, Evidence(exit_code=1).kill_signal
    (9, 9, None)
    """

    raised: tuple[RaisedException, ...] = ()
    """The exception that ended the task, then what it was raised from, and what was being handled."""
    log: str = ""
    """The end of what it wrote."""
    exit_code: int | None = None
    """Of its process: negative, or 128 and more, for a signal."""
    oom_kills: int | None = None
    """By how much the counter ``oom_kill`` of its cgroup grew while it ran."""
    host_memory_bytes: int | None = None
    """What it might use of the host's memory, where that is known beside its lease."""
    xids: tuple[tuple[str, int], ...] = ()
    """(device id, XID) that the driver reported of its own devices while it ran."""
    is_gone: bool = False
    """Its worker or its process went away without a word."""
    notice: str | None = None
    """Why it had been asked to stop, if it had."""
    hung_s: float | None = None
    """For how long it had made no progress when it was stopped for that."""

    @property
    def kill_signal(self) -> int | None:
        """The number of the signal that ended the process."""
        code = self.exit_code
        if code is None or code >= 0:
            return code - 128 if code is not None and 128 < code < 128 + 65 else None
        return -code

    @property
    def is_log_relevant(self) -> bool:
        """Whether the log counts.

        A task may write of errors that it has dealt with. So its log is asked only where no exception says
        what happened.
        """
        return not self.raised or self.raised[0].reports_other_process

    @property
    def final_exception_type(self) -> str | None:
        """The type of the exception that ended the task itself, from its log where only that tells it."""
        if not self.is_log_relevant:
            return self.raised[0].type
        names = [name for name in _RAISED_LINE.findall(self.log[-MAX_LOG:]) if _WRAPPERS.search(name) is None]
        return str(names[-1]) if names else None

    def texts(self) -> Iterator[tuple[str, str]]:
        """(where, text) of all that counts, the task's own exception first."""
        for number, raised in enumerate(self.raised[:MAX_CHAIN]):
            where = "the exception" if number == 0 else "what the exception came from"
            yield where, _both_ends(f"{raised.type}: {raised.text}")
        if self.is_log_relevant and self.log:
            yield "the log", self.log[-MAX_LOG:]


def evidence_of(error: BaseException) -> Evidence:
    """What an exception tells of how the run ended: its own `evidence` if it brings one, else its chain."""
    own = getattr(error, "evidence", None)
    return own if isinstance(own, Evidence) else Evidence(raised=chain_of(error))


def chain_of(error: BaseException) -> tuple[RaisedException, ...]:
    """The exception, its causes, what was being handled, and the members of groups, in that order, each once.

    >>> try:
    ...     try:
    ...         raise MemoryError
    ...     except MemoryError as error:
    ...         raise ValueError("no batch") from error
    ... except ValueError as error:
    ...     chain_of(error)
    (RaisedException(type='ValueError', text='no batch'), RaisedException(type='MemoryError', text=''))
    """
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting and len(found) < MAX_CHAIN:
        one = waiting.pop(0)
        if one is None or any(one is known for known in found):
            continue
        found.append(one)
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions[:MAX_CHAIN]
        waiting += [one.__cause__, None if one.__suppress_context__ else one.__context__]
    return tuple(RaisedException(_type_name(type(one)), _text(one)) for one in found)


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return _both_ends(str(error))
    except Exception:  # noqa: BLE001  a foreign __str__ may raise anything
        return shorten(error)


def _both_ends(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]}\n{text[-MAX_TEXT // 2 :]}"
