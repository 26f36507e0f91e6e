"""What a sequence came to, from the witness's journal and from what Airflow says of the tasks. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Line = Mapping[str, Any]
TaskId = tuple[str, int]
"""Task id and map index."""

ENDS = ("success", "failed", "upstream_failed", "skipped", "removed")


@dataclass(frozen=True)
class Double:
    """A task that got a device which another process still had."""

    task: Any
    device: str
    holders: tuple[tuple[Any, str], ...]
    """The tasks that took the locks, and the state of each one's process: T is frozen; "gone": a child has the lock."""


def doubles(journal: Iterable[Line]) -> list[Double]:
    """All uses of a device that had another user."""
    return [
        Double(line["task"], line["device"], tuple((holder.get("task"), holder["state"]) for holder in line["holders"]))
        for line in journal
        if line["event"] == "double"
    ]


def shared_tokens(journal: Iterable[Line]) -> list[int]:
    """The tokens under which more than one process used devices."""
    processes = defaultdict(set)
    for line in journal:
        if line["event"] == "start":
            processes[line["token"]].add((line["boot"], line["pid"], line["ticks"]))
    return sorted(token for token, users in processes.items() if len(users) > 1)


def longest_wait_s(journal: Sequence[Line]) -> float:
    """The longest time in which no task began or ended."""
    times = sorted(line["at"] for line in journal if line["event"] in ("start", "end"))
    return max((after - before for before, after in pairwise(times)), default=0.0)


def done_again(journal: Iterable[Line], cleared: Counter[TaskId]) -> int:
    """How often a task did its whole work once more, without a clear: its end was not reported in time."""
    ends = Counter(tuple(line["task"][:2]) for line in journal if line["event"] == "end")
    return sum(max(0, count - 1 - cleared[(id_[0], id_[1])]) for id_, count in ends.items())


def lost(tasks: Iterable[Line], journal: Iterable[Line], by_hand: Iterable[TaskId]) -> list[str]:
    """The tasks that ended, but not as they should: nobody marked them, and they failed or did not do their work."""
    worked = {tuple(line["task"][:2]) for line in journal if line["event"] == "end"}
    exempt = set(by_hand)
    problems = []
    for task in tasks:
        id_ = (task["task_id"], task["map_index"])
        if id_ in exempt or task["state"] not in ENDS:
            continue
        if task["state"] != "success":
            problems.append(f"{id_} ended as {task['state']}")
        elif id_ not in worked:
            problems.append(f"{id_} is a success and has not done its work")
    return problems


def unended(tasks: Iterable[Line]) -> list[str]:
    """The tasks that are still about to run."""
    return [f"{task['task_id']}[{task['map_index']}] is {task['state']}" for task in tasks if task["state"] not in ENDS]


def retries_spent(tasks: Iterable[Line], cleared: Counter[TaskId]) -> dict[TaskId, int]:
    """The tasks that have had more tries than they were cleared → how many."""
    spent = {}
    for task in tasks:
        id_ = (task["task_id"], task["map_index"])
        count = int(task["try_number"]) - 1 - cleared[id_]
        if count > 0:
            spent[id_] = count
    return spent
