"""Conditions on node labels, as node affinity has them: alternatives of what must hold together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hetero_airflow.errors import RequestError

MAX_TERMS = 64
"""Alternatives in a pod's affinity; a request that needs more is taken for a mistake."""


class Requirement(NamedTuple):
    """One condition on one label; ``Gt`` and ``Lt`` compare whole numbers and take one value."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


Term = tuple[Requirement, ...]
"""All must hold."""

Terms = tuple[Term, ...]
"""Any may hold; none at all can't be met."""

ALWAYS: Terms = ((),)
"""Holds on every node."""


def one(*requirements: Requirement) -> Terms:
    """The condition that these hold together."""
    return (requirements,)


def within(key: str, values: Iterable[str]) -> Requirement:
    """The label has one of these values."""
    return Requirement(key, "In", tuple(values))


def without(key: str, values: Iterable[str]) -> Requirement:
    """The label has none of these values, or is not there."""
    return Requirement(key, "NotIn", tuple(values))


def between(key: str, low: int | None, high: int | None) -> Term:
    """The label is a whole number within the range; both ends belong to it, None is open.

    A lower end of 0 is left out: no label that is meant here is negative, and ``-1`` is no value of a label.
    Equality is a range too, since feature discovery writes ``05`` for the revision 5 of a driver.

    >>> between("m", 5, 5)
    (Requirement(key='m', operator='Gt', values=('4',)), Requirement(key='m', operator='Lt', values=('6',)))
    """
    lower = (Requirement(key, "Gt", (str(low - 1),)),) if low else ()
    upper = (Requirement(key, "Lt", (str(high + 1),)),) if high is not None else ()
    return lower + upper


def both(*conditions: Terms) -> Terms:
    """The condition that all of these hold.

    >>> a, b, c = (Requirement(key, "Exists") for key in "abc")
    >>> [[requirement.key for requirement in term] for term in both(((a,), (b,)), one(c))]
    [['a', 'c'], ['b', 'c']]

    :raises RequestError: it takes more than `MAX_TERMS` alternatives to say so
    """
    joined = ALWAYS
    for terms in conditions:
        joined = tuple(dict.fromkeys(tuple(dict.fromkeys((*left, *right))) for left in joined for right in terms))
        if len(joined) > MAX_TERMS:
            raise RequestError(
                "device",
                f"{len(joined)} alternatives of node labels",
                found=f"a limit of {MAX_TERMS}",
                remedy="Ask for fewer versions: a single range of driver and runtime",
            )
    return joined


def to_json(terms: Terms) -> list[dict[str, Any]]:
    """``nodeSelectorTerms``; empty for `ALWAYS`, since an empty term would match no node.

    >>> to_json(one(within("zone", ["a"]))), to_json(ALWAYS)
    ([{'matchExpressions': [{'key': 'zone', 'operator': 'In', 'values': ['a']}]}], [])
    """
    if () in terms:
        return []
    return [{"matchExpressions": [_requirement(requirement) for requirement in term]} for term in terms]


def _requirement(requirement: Requirement) -> dict[str, Any]:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}
