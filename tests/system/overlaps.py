"""Whether tasks ever used one device at the same time, by the times that the tasks wrote down."""

from itertools import combinations


def overlaps(uses):
    """Pairs of uses that together took more than the whole of a device, as (device id, first, second)."""
    return [
        (device_id, first, second)
        for first, second in combinations(uses, 2)
        for device_id in set(first["ids"]) & set(second["ids"])
        if first["start"] < second["end"] and second["start"] < first["end"]
        and first["kind"] != "cpu" and first["milli"] + second["milli"] > 1000
    ]  # fmt: skip
