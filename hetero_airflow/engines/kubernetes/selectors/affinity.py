"""Conditions on node labels in the form of node affinity: alternative terms of requirements that hold together."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from hetero_airflow.errors import RequestError

MAX_TERMS = 64
"""Limit of alternative terms in a pod's affinity. A request that needs more is taken for a mistake."""


class Requirement(NamedTuple):
    """One condition on one label. ``Gt`` and ``Lt`` compare whole numbers and take one value."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


Term = tuple[Requirement, ...]
"""All must hold."""

Terms = tuple[Term, ...]
"""At least one must hold. Without any term, no node matches."""

ALWAYS: Terms = ((),)
"""Matches every node."""


def term_of(*requirements: Requirement) -> Terms:
    """A single term: all of these requirements hold."""
    return (requirements,)


def is_in(key: str, values: Iterable[str]) -> Requirement:
    """The label has one of these values."""
    return Requirement(key, "In", tuple(values))


def not_in(key: str, values: Iterable[str]) -> Requirement:
    """The label has none of these values, or is missing."""
    return Requirement(key, "NotIn", tuple(values))


def in_range(key: str, low: int | None, high: int | None) -> Term:
    """The label is a whole number in the range. Both ends are included; None is open.

    A lower end of 0 is left out: none of these labels is negative, and ``-1`` is no label value.
    Equality is a range too, because feature discovery writes ``05`` for revision 5 of a driver.

    >>> in_range("m", 5, 5)
    (Requirement(key='m', operator='Gt', values=('4',)), Requirement(key='m', operator='Lt', values=('6',)))
    """
    lower = (Requirement(key, "Gt", (str(low - 1),)),) if low else ()
    upper = (Requirement(key, "Lt", (str(high + 1),)),) if high is not None else ()
    return lower + upper


def all_of(*conditions: Terms) -> Terms:
    """The terms that hold if all of these conditions hold.

    >>> a, b, c = (Requirement(key, "Exists") for key in "abc")
    >>> [[requirement.key for requirement in term] for term in all_of(((a,), (b,)), term_of(c))]
    [['a', 'c'], ['b', 'c']]

    :raises RequestError: that needs more than `MAX_TERMS` alternative terms
    """
    joined = ALWAYS
    for terms in conditions:
        joined = tuple(dict.fromkeys(tuple(dict.fromkeys((*left, *right))) for left in joined for right in terms))
        if len(joined) > MAX_TERMS:
            raise RequestError(
                "device",
                f"{len(joined)} alternatives of node labels",
                found=f"a limit of {MAX_TERMS}",
                remedy="Ask for fewer versions: one range for the driver and one for the runtime",
            )
    return joined


def to_json(terms: Terms) -> list[dict[str, Any]]:
    """The ``nodeSelectorTerms``; empty for `ALWAYS`, because an empty term matches no node.

    >>> to_json(term_of(is_in("zone", ["a"]))), to_json(ALWAYS)
    ([{'matchExpressions': [{'key': 'zone', 'operator': 'In', 'values': ['a']}]}], [])
    """
    if () in terms:
        return []
    return [{"matchExpressions": [_requirement(requirement) for requirement in term]} for term in terms]


def _requirement(requirement: Requirement) -> dict[str, Any]:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}
