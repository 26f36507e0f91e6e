"""The claim to start the task of a lease."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartClaimed:
    """A scheduler claims the start of a lease's task, which waits with it. The next snapshot shows who has it.

    Ignored if another scheduler has it, or if the lease is not held with this token. So a task is started once under a
    lease: two messages with one lease could begin two runs, one after the other.
    """

    lease_id: str
    token: int
    starter: str
