"""A state of plain values: numbers, texts, lists, dicts and arrays."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from hetero_airflow.contract.notice import Stopped
from hetero_airflow.errors import InvalidCheckpoint, RequestError
from hetero_airflow.runtime import checkpoint
from hetero_airflow.runtime.step_loop import StepLoop
from tests.runtime.conftest import Begin


def first_values() -> dict[str, Any]:
    return {
        "sum": 0,
        "name": "none",
        "best": {},
        "history": [],
        "rows": np.zeros((2, 3)),
        "is_odd": None,
        "loss": math.inf,
        "weights": torch.zeros(2),
    }


def improve(state: dict[str, Any], step: int) -> None:
    state["sum"] += step
    state["name"] = f"step {step}"
    state["best"][f"loss {step}"] = [step, {"deep": (step,)}]
    state["history"].append(step)
    state["rows"] += step
    state["is_odd"] = bool(step % 2)
    state["loss"] = np.float64(1 / (1 + step))
    state["weights"] += step


def expected(total: int) -> dict[str, Any]:
    state = first_values()
    for step in range(total):
        improve(state, step)
    return state


def is_equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return (
        left.keys() == right.keys()
        and np.array_equal(left["rows"], right["rows"])
        and torch.equal(left["weights"], right["weights"])
        and all(left[name] == right[name] for name in left if name not in ("rows", "weights"))
    )


def test_plain_values_are_saved_restored_and_read_through_the_checkpoint(begin: Begin, notice, monkeypatch) -> None:
    def run() -> None:
        session = begin()
        monkeypatch.setattr(checkpoint, "session", lambda: session)
        for step in checkpoint.steps(6, every="1h", state=first_values()):
            improve(checkpoint.state, step)
            if step == 3:
                notice()

    with pytest.raises(Stopped):
        run()
    assert is_equal(checkpoint.state, expected(4))
    with pytest.raises(Stopped):  # the notice is still there
        run()
    assert is_equal(checkpoint.state, expected(4))
    assert is_equal(begin().latest().state, expected(4))


def test_the_task_may_keep_its_own_dict_lists_and_arrays(begin: Begin) -> None:
    for step in StepLoop(begin(), 3, 1, state=(state := first_values())):
        improve(state, step)
    rows, history, weights = np.zeros((2, 3)), [], torch.zeros(2)
    state = first_values() | {"rows": rows, "history": history, "weights": weights}
    for step in StepLoop(begin(), 5, 1, state=state):
        state["sum"] += step
        history.append(step)
        rows += step
        weights += step
    assert (state["sum"], history, rows[0, 0], weights.tolist()) == (10, [0, 1, 2, 3, 4], 10, [10, 10])


def test_an_array_of_another_shape_replaces_the_first_one(begin: Begin) -> None:
    for step in StepLoop(begin(), 3, 1, state=(state := {"rows": np.zeros(0)})):
        state["rows"] = np.append(state["rows"], step)
    list(StepLoop(begin(), 3, 1, state=(state := {"rows": np.zeros(0)})))
    assert state["rows"].tolist() == [0, 1, 2]


def test_plain_values_go_beside_modules_and_inside_their_dicts(begin: Begin) -> None:
    def parts() -> dict[str, Any]:
        return {"model": torch.nn.Linear(1, 1), "more": {"other": torch.nn.Linear(1, 1), "seen": []}, "best": {"a": 1}}

    for step in StepLoop(begin(), 2, 1, state=(before := parts())):
        before["more"]["seen"].append(step)
        before["best"] = {"b": 2}
    after = parts()
    list(StepLoop(begin(), 2, 1, state=after))
    assert after["model"].weight.equal(before["model"].weight)
    assert after["more"]["other"].weight.equal(before["more"]["other"].weight)
    assert (after["more"]["seen"], after["best"]) == ([0, 1], {"b": 2})


def test_a_state_that_checkpoint_save_saved_is_restored(begin: Begin) -> None:
    begin().save(1, {"sum": 1}, metrics=None, files=None, wait=True, final=False)
    for step in StepLoop(begin(), 4, 1, state=(state := {"sum": 0})):
        state["sum"] += step
    assert state == {"sum": 6}


@pytest.mark.parametrize(
    ("value", "field", "found"),
    [
        ({1, 2}, "state['x']", "an object of the type builtins.set"),
        (object(), "state['x']", "an object of the type builtins.object"),
        (int, "state['x']", "an object of the type builtins.type"),
        (defaultdict(int), "state['x']", "an object of the type collections.defaultdict"),
        ([1, [object()]], "state['x']", "an object of the type builtins.object at state['x'][1][0]"),
        ({"y": {("a", "b"): 1}}, "state['x']", "the key ('a', 'b') of the type builtins.tuple at state['x']['y']"),
        ({"y": torch.nn.Linear(1, 1), "z": {1}}, "state['x']['z']", "an object of the type builtins.set"),
        (
            [torch.nn.Linear(1, 1)],
            "state['x']",
            "a list of objects with state_dict(), which can't be restored in place",
        ),
        (np.array(["text"]), "state['x']", "an array of <U4"),
    ],
)
def test_a_value_that_cannot_be_saved_is_refused_at_once(begin: Begin, value, field, found, tmp_path) -> None:
    with pytest.raises(RequestError) as caught:
        StepLoop(begin(), 10, 1, state={"sum": 0, "x": value})
    assert (caught.value.field, caught.value.found) == (field, found)
    assert caught.value.remedy
    assert not (tmp_path / "store").exists()


def test_a_dict_that_contains_itself_is_refused(begin: Begin) -> None:
    state: dict[str, Any] = {}
    state["x"] = {"y": state}
    with pytest.raises(RequestError, match="levels of nesting"):
        StepLoop(begin(), 10, 1, state=state)


@pytest.mark.parametrize("state", [5, "text", [1, 2], np.zeros(3), torch.zeros(3), torch.optim.SGD, lambda: None])
def test_a_state_that_is_no_dict_is_refused_with_the_form_to_write(begin: Begin, state) -> None:
    with pytest.raises(RequestError, match=r'Write a dict, such as state=\{"total": 0\}'):
        StepLoop(begin(), 10, 1, state=state)


def test_the_state_can_be_read_only_in_a_loop_that_has_one(begin: Begin, monkeypatch) -> None:
    session = begin()
    monkeypatch.setattr(checkpoint, "session", lambda: session)
    with pytest.raises(RequestError, match="found no loop that has begun with a state"):
        checkpoint.state  # noqa: B018
    with pytest.raises(AttributeError, match="stat"):
        checkpoint.stat  # noqa: B018
    assert not hasattr(checkpoint, "other")


def test_a_local_variable_that_is_not_saved_is_warned_of(begin: Begin, caplog) -> None:
    total = 0
    for step in StepLoop(begin(), 4, 1, state={"total": total}):
        total += step
    assert caplog.text.count("The state has not changed since the loop began, two saves ago: {'total': 0}") == 1


def test_a_state_that_changes_only_after_the_first_save_is_fine(begin: Begin, caplog) -> None:
    for step in StepLoop(begin(), 4, 1, state=(state := {"total": 0})):
        state["total"] += step
    assert "has not changed" not in caplog.text


def test_a_name_that_comes_later_is_warned_of(begin: Begin, caplog) -> None:
    for step in StepLoop(begin(), 4, 1, state=(state := {"sum": 0})):
        state["late"] = state["sum"] = step + 1
    assert caplog.text.count("state['late'] is saved but will not be restored") == 1
    assert "has not changed" not in caplog.text


def test_a_value_that_becomes_unsavable_fails_by_its_name_and_keeps_the_last_checkpoint(begin: Begin) -> None:
    def loop() -> None:
        for step in StepLoop(begin(), 9, 1, state=(state := {"seen": []})):
            state["seen"].append(step if step < 3 else {step})

    with pytest.raises(InvalidCheckpoint, match=r"state\['seen'\]\[3\]; found an object of the type builtins.set"):
        loop()
    assert begin().latest().state == {"seen": [0, 1, 2]}
