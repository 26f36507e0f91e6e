"""Retention: which checkpoints of a place stay. Pure."""

from collections.abc import Collection, Sequence

from hetero_airflow.checkpoints.index import CheckpointEntry, Index
from hetero_airflow.checkpoints.keys import token_of
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import SettingsError, shorten

ABANDONED_AFTER_S = 3600.0
"""A folder of our own token that no index names may still be in work, by a second process with the same lease."""


def retained_entries(entries: Sequence[CheckpointEntry], place: CheckpointPlace) -> tuple[CheckpointEntry, ...]:
    """The entries of one epoch that stay, in their order: the last ones, the best one, the first of each block.

    Among equally good entries the last one stays. A block has `place.keep_every` completed steps. The first, incomplete
    block keeps none: with 1000, of the steps 499, 999, 1499, 1999, 2499 it keeps 999 and 1999.
    """
    kept_keys = {entry.key for entry in entries[-place.keep_last :]}
    if place.keep_best is not None:
        sign, metric = parse_keep_best(place.keep_best)
        rated = [
            (sign * entry.metrics[metric], number) for number, entry in enumerate(entries) if metric in entry.metrics
        ]
        if rated:
            kept_keys.add(entries[max(rated)[1]].key)
    if place.keep_every is not None:
        blocks: dict[int, str] = {}
        for entry in entries:
            blocks.setdefault((entry.step + 1) // place.keep_every, entry.key)
        blocks.pop(0, None)
        kept_keys.update(blocks.values())
    return tuple(entry for entry in entries if entry.key in kept_keys)


def parse_keep_best(text: str) -> tuple[int, str]:
    """Sign and metric of ``min:loss`` or ``max:accuracy``; the best entry has the greatest sign × value.

    >>> parse_keep_best("min:loss")
    (-1, 'loss')

    :raises SettingsError: something else
    """
    mode, _, metric = text.partition(":")
    sign = {"min": -1, "max": 1}.get(mode)
    if sign is None or not metric:
        raise SettingsError(
            f"keep_best={shorten(text)}", found='neither "min:" nor "max:"', remedy="Write min:loss or max:accuracy"
        )
    return sign, metric


def is_garbage(folder: str, age_s: float, *, index: Index, token: int, retired: Collection[str]) -> bool:
    """Whether the writer that has just published with `token` may delete a folder last written `age_s` seconds ago.

    Never a folder that the index names, that a later run may be writing, or that is no checkpoint's. A folder of an
    earlier token can go at once, since it can't be published any more. A folder of our own token can go if we have just
    retired it, or if it is incomplete for an hour.
    """
    owner = token_of(folder)
    if owner is None or owner > token or any(entry.key == folder for entry in index.entries):
        return False
    return owner < token or folder in retired or age_s > ABANDONED_AFTER_S
