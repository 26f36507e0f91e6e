"""``airflow hetero unpause``: paused tasks get devices again."""

from argparse import Namespace

from hetero_airflow.cli.action import action
from hetero_airflow.cli.requests.named_tasks import change_queue
from hetero_airflow.store.store import Pause


@action
def unpause(args: Namespace) -> None:
    """Let paused tasks take part in placement again, with their old place by age."""
    change_queue(
        args,
        "unpause",
        lambda pending: Pause(pending.id, is_paused=False),
        lambda pending: "waits for its devices",
    )
