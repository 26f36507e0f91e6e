"""``airflow hetero bump``: waiting tasks get another priority class."""

from argparse import Namespace

from hetero_airflow.cli.action import action
from hetero_airflow.cli.requests.named_tasks import change_queue
from hetero_airflow.model.request import Priority
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.store.store import PriorityChange


@action
def bump(args: Namespace) -> None:
    """Give waiting tasks the named class, or the next higher one."""

    def changed(pending: PendingRequest) -> PriorityChange:
        wanted = Priority(args.priority) if args.priority else higher(pending.request.priority)
        return PriorityChange(pending.id, wanted)

    change_queue(args, "bump", changed, lambda pending: f"waits with the priority {pending.request.priority}")


def higher(priority: Priority) -> Priority:
    """The next higher class; the highest is its own.

    >>> [str(higher(priority)) for priority in Priority]
    ['urgent', 'urgent', 'high', 'medium']
    """
    return tuple(Priority)[max(0, priority.rank - 1)]
