"""Transitions of a run in words."""

from hetero_airflow.executor import events
from hetero_airflow.model.run import Transition


def transition_text(transition: Transition) -> str:
    """What was found out, and why the run ended if it did.

    >>> from hetero_airflow.testing import EPOCH
    >>> transition_text(Transition(EPOCH, "HandedOver", "handed over"))
    'The engine has taken the task with its lease'
    >>> transition_text(Transition(EPOCH, "FromAnotherVersion", "ending", "the task ended"))
    'FromAnotherVersion: the task ended'
    """
    kind = getattr(events, transition.event, None)
    text = events.first_sentence(kind) if kind is not None else ""
    return ": ".join(part for part in (text or transition.event, transition.text) if part)
