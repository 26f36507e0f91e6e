"""What a person changes about a request that waits."""

from dataclasses import dataclass, replace

from hetero_airflow.model.request import Priority
from hetero_airflow.model.snapshot import PendingRequest


@dataclass(frozen=True, slots=True)
class Pause:
    """The request gets no devices from now on; or gets devices again."""

    request_id: str
    is_paused: bool = True

    def of(self, pending: PendingRequest) -> PendingRequest:
        """The request with this change."""
        return replace(pending, is_paused=self.is_paused)


@dataclass(frozen=True, slots=True)
class PriorityChange:
    """The request has another priority class from now on."""

    request_id: str
    priority: Priority

    def of(self, pending: PendingRequest) -> PendingRequest:
        """The request with this change."""
        return replace(pending, request=pending.request.model_copy(update={"priority": self.priority}))


QueueChange = Pause | PriorityChange
