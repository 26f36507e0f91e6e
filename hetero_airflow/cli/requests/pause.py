"""``airflow hetero pause``: waiting tasks get no devices until ``unpause``. The pause is in the database."""

from argparse import Namespace

from hetero_airflow.cli.action import action
from hetero_airflow.cli.requests.named_tasks import change_queue
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.store.store import Pause


@action
def pause(args: Namespace) -> None:
    """Keep waiting tasks out of placement."""
    change_queue(args, "pause", lambda pending: Pause(pending.id), paused_text)


def paused_text(pending: PendingRequest) -> str:
    """What the command prints about a paused request.

    >>> from hetero_airflow.testing import a_pending
    >>> paused_text(a_pending("a", wait_timeout="1h"))
    'is paused: it gets no devices until `airflow hetero unpause`. Its wait_timeout of 3600 s goes on'
    """
    limit_s = pending.request.wait_timeout_s
    limit_text = "" if limit_s is None else f". Its wait_timeout of {limit_s:g} s goes on"
    return f"is paused: it gets no devices until `airflow hetero unpause`{limit_text}"
