import errno
import json
import math
import resource
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.errors import InvalidCheckpoint
from hetero_airflow.runtime.state.files import TENSORS, read_state, write_state
from hetero_airflow.runtime.state.tree import stage

KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
LEAVES = KEYS | st.floats(allow_nan=False) | st.binary(max_size=20) | st.complex_numbers(allow_nan=False)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


def saved_and_read(state, folder: Path):
    write_state(stage(state), folder)
    return read_state(folder)


@settings(deadline=None)
@given(state=TREES)
def test_values_come_back_with_their_types(state, tmp_path_factory) -> None:
    back = saved_and_read(state, tmp_path_factory.mktemp("state"))
    assert back == state
    assert repr(back) == repr(state)


def test_a_text_key_that_looks_like_a_tag_is_only_a_key(tmp_path) -> None:
    state = {"$": "tuple", "items": [1]}
    assert saved_and_read(state, tmp_path) == state


def test_floats_that_json_cannot_represent_are_restored(tmp_path) -> None:
    back = saved_and_read([math.nan, math.inf, -math.inf, -0.0], tmp_path)
    assert math.isnan(back[0])
    assert back[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, back[3]) == -1


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.uint16]
)
def test_tensors_come_back_bit_for_bit(dtype, tmp_path) -> None:
    tensor = torch.randint(0, 2, (3, 5)).to(dtype).t()
    back = saved_and_read({"x": tensor, "none": tensor[:0]}, tmp_path)
    assert back["x"].dtype is dtype
    assert back["x"].shape == (5, 3)
    assert back["x"].contiguous().view(torch.uint8).equal(tensor.contiguous().view(torch.uint8))
    assert back["none"].shape == (0, 3)


def test_complex_tensors_and_arrays_come_back(tmp_path) -> None:
    state = {
        "torch": torch.tensor([1 + 2j, 3]).conj(),
        "numpy": np.array([[1 + 2j, complex(math.inf, 1)]], dtype=np.complex64),
        "scalar": np.complex128(1 - 1j),
    }
    back = saved_and_read(state, tmp_path)
    assert back["torch"].equal(state["torch"])
    assert back["numpy"].dtype == np.complex64
    assert (back["numpy"] == state["numpy"]).all()
    assert back["scalar"] == state["scalar"]


def test_arrays_come_back_in_native_order(tmp_path) -> None:
    back = saved_and_read([np.arange(6, dtype=">i4").reshape(2, 3)[:, ::2], np.float32(0.1), np.array(7)], tmp_path)
    assert back[0].tolist() == [[0, 2], [3, 5]]
    assert back[0].dtype == np.int32
    assert (type(back[1]), back[1]) == (np.float32, np.float32(0.1))
    assert back[2].shape == ()


def test_tied_tensors_are_kept_once_and_are_tied_again(tmp_path) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    back = saved_and_read({"embedding": weight, "head": {"weight": weight}, "row": weight[0]}, tmp_path)
    assert back["embedding"].data_ptr() == back["head"]["weight"].data_ptr()
    assert back["row"].data_ptr() != back["embedding"].data_ptr()
    assert (tmp_path / TENSORS).stat().st_size < 2 * weight.nbytes + 1000


def test_tensors_of_passing_state_dicts_are_not_mixed_up(tmp_path) -> None:
    class Fresh:
        def __init__(self, number: int) -> None:
            self.number = number

        def state_dict(self):
            return {"number": torch.full((1000,), self.number)}

    back = saved_and_read([Fresh(number) for number in range(20)], tmp_path)
    assert [int(state["number"][0]) for state in back] == list(range(20))


def test_a_staged_state_stays_as_it_was(tmp_path) -> None:
    model, history = torch.nn.Linear(2, 2, bias=False), [1]
    array = np.zeros(3)
    before = model.weight.detach().clone()
    staged = stage({"model": model, "history": history, "array": array})
    with torch.no_grad():
        model.weight.add_(1)
    history.append(2)
    array += 1
    write_state(staged, tmp_path)
    back = read_state(tmp_path)
    assert back["model"]["weight"].equal(before)
    assert back["history"] == [1]
    assert back["array"].tolist() == [0, 0, 0]


def test_modules_optimisers_and_schedulers_come_back_as_torch_wants_them(tmp_path) -> None:
    def made():
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.Adam(model.parameters())
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])

    model, optimizer, scheduler = made()
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    back = saved_and_read({"model": model, "optimizer": optimizer, "scheduler": scheduler}, tmp_path)
    assert back["model"]._metadata == model.state_dict()._metadata
    assert isinstance(back["scheduler"]["milestones"], Counter)
    restored, other_optimizer, other_scheduler = made()
    restored.load_state_dict(back["model"])
    other_optimizer.load_state_dict(back["optimizer"])
    other_scheduler.load_state_dict(back["scheduler"])
    assert stage([restored, other_optimizer, other_scheduler]).text() == stage([model, optimizer, scheduler]).text()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (object(), "builtins.object"),
        ({1, 2}, "builtins.set"),
        (lambda: 1, "builtins.function"),
        (torch.nn.Linear, "builtins.type"),
        (Path("x"), "Path"),
        ({(1, 2): 3}, "the key (1, 2)"),
        ({math.nan: 3}, "the key nan"),
        (np.array(["a"]), "an array of <U1"),
        (np.array([object()]), "an array of object"),
        (torch.ones(2, device="meta"), "not dense"),
        (torch.eye(2).to_sparse(), "not dense"),
    ],
)
def test_a_value_that_only_pickle_represents_is_refused_with_its_place(value, found) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        stage({"a": [0, value]})
    assert caught.value.asked == "to save state['a'][1]"
    assert found in caught.value.found


def test_a_state_that_holds_itself_is_refused() -> None:
    state: list[object] = []
    state.append(state)
    with pytest.raises(InvalidCheckpoint, match="100 levels"):
        stage(state)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"$": "pickle", "value": "gASVKAAAAA"}',
        '{"$": "tuple"}',
        '{"$": ["dict"]}',
        '{"$": "int", "value": 3}',
        '{"$": "dict", "items": [[[], 1]]}',
        '{"$": "torch", "array": "state"}',
        "[" * 100_000,
    ],
)
def test_a_tree_that_stage_did_not_write_is_refused(text, tmp_path) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(InvalidCheckpoint):
        read_state(tmp_path)


def test_a_foreign_pickle_is_never_opened(tmp_path) -> None:
    opened = tmp_path / "opened"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (opened,))

    write_state(stage({"x": torch.ones(2)}), tmp_path)
    torch.save({"state['x']": Evil()}, tmp_path / TENSORS)
    with pytest.raises(InvalidCheckpoint, match="a pickle"):
        read_state(tmp_path)
    assert not opened.exists()


def test_a_state_without_arrays_is_one_small_file(tmp_path) -> None:
    assert [path.name for path in write_state(stage({"a": 1}), tmp_path)] == ["state.json"]
    assert json.loads((tmp_path / "state.json").read_text()) == {"a": 1}


def test_the_memory_of_a_published_state_is_written_over(tmp_path) -> None:
    first = stage({"t": torch.ones(3), "n": np.ones(3), "other": torch.ones(2)})
    memory = [first.arrays[f"state['{name}']"].data for name in "n"] + [first.arrays["state['t']"].data_ptr()]
    state = {"t": torch.full((3,), 2.0), "n": np.full(3, 2.0), "other": torch.full((2,), 2, dtype=torch.int64)}
    second = stage(state, over=first)
    assert second.arrays["state['t']"].data_ptr() == memory[1]
    assert np.shares_memory(second.arrays["state['n']"], first.arrays["state['n']"])
    write_state(second, tmp_path)
    back = read_state(tmp_path)
    assert (back["t"].tolist(), back["n"].tolist(), back["other"].tolist()) == ([2, 2, 2], [2, 2, 2], [2, 2])
    assert back["other"].dtype is torch.int64


def test_a_full_disk_is_an_os_error_for_every_writer(tmp_path: Path) -> None:
    staged = stage({"weights": np.zeros(1 << 16)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_state(staged, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
