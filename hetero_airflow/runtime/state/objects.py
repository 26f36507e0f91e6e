"""The two kinds of values in a state: objects that restore themselves, and plain values.

An object has ``state_dict()`` and ``load_state_dict()``, as torch's modules have. Everything else is plain: it is saved
as it is, and restored as a whole.
"""

from collections.abc import Mapping


def has_state_dict(value: object) -> bool:
    """Whether the value is an object with ``state_dict()``.

    >>> import random
    >>> has_state_dict(3), has_state_dict(random)
    (False, False)
    """
    return callable(getattr(value, "state_dict", None)) and not isinstance(value, type)


def holds_objects(value: object) -> bool:
    """Whether the value is an object with ``state_dict()``, or a container that has one at any depth.

    >>> holds_objects({"sum": 3, "rows": [[1], (2, {})]})
    False
    """
    parts, visited_ids = [value], set()
    while parts:
        part = parts.pop()
        if has_state_dict(part):
            return True
        if isinstance(part, (Mapping, list, tuple)) and id(part) not in visited_ids:  # it may contain itself
            visited_ids.add(id(part))
            parts.extend(part.values() if isinstance(part, Mapping) else part)
    return False
