"""The search finds a size that fits, and a trial changes nothing; parts add up to the whole batch."""

import json
import logging
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from hetero_airflow.errors import CheckpointStoreUnavailable, OutOfMemory, RequestError
from hetero_airflow.runtime.compute import batch_search
from hetero_airflow.runtime.compute.batch_search import MAX_PROBES, Batch, _BatchSearch, largest_that_fits
from hetero_airflow.runtime.compute.memory import is_out_of_memory
from hetero_airflow.runtime.compute.mixed_precision import LossScaler
from hetero_airflow.runtime.compute.untouched import untouched
from hetero_airflow.runtime.state.tree import stage
from hetero_airflow.settings import CHECKPOINT_VARIABLE, LEASE_VARIABLE
from hetero_airflow.testing import a_task_lease


class CountedMemory:
    """The memory of a device that is not here. A step says how many rows it had."""

    limit_bytes = 1000

    def __init__(self) -> None:
        self.rows = 0

    def highest_bytes(self, call):
        self.rows = 0
        call()
        return 100 + self.rows

    def release(self):
        pass

    def settle(self, *, is_tight):
        self.is_tight = is_tight


@pytest.fixture
def memory(monkeypatch):
    counted = CountedMemory()
    monkeypatch.setattr(batch_search, "device_memory", lambda device, leased_bytes: counted)
    return counted


@pytest.fixture
def search(begin, memory):
    """Searches for a model's batch size; a row takes ``per_row`` bytes of 900. Also returns the sizes it tried."""

    def searched(rows=2048, per_row=3, model=None, store=None, step=None, token=None):
        model = model or nn.Linear(4, 2)
        tried = []

        def make_step(size):
            tried.append(size)
            memory.rows = size * per_row
            if memory.rows > 900:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return (step or (lambda size: 1.0))(size)

        session = begin(token=token, store=store)
        return _BatchSearch(session, make_step, rows, {"model": model}).run(), tried

    return searched


@given(
    per_row=st.floats(1e-4, 0.9),
    fixed=st.floats(0, 0.5),
    bend=st.floats(0, 0.3),
    most=st.integers(1, 1 << 16),
)
def test_the_size_fits_and_is_near_the_largest(per_row, fixed, bend, most):
    """Memory grows along a line that may bend a little, upwards or in steps."""

    def used(size):
        asked.append(size)
        part = fixed + per_row * size * (1 + bend * min(1, size * per_row))
        return part if part <= 1 else None

    asked = []
    found = largest_that_fits(used, most)
    assert len(asked) <= MAX_PROBES
    assert all(1 <= size <= most for size in asked)
    sizes = [size for size in range(1, most + 1) if (used(size) or 2) <= 0.94] if most < 3000 else None
    assume(sizes is not None)
    assert found in (sizes or [0])
    assert found >= 0.85 * 0.94 * max(sizes, default=0) - 1


@pytest.mark.parametrize(
    ("used", "most", "found"),
    [
        (lambda size: 0.95, 2048, 0),  # nothing fits
        (lambda size: None, 2048, 0),
        (lambda size: 0.9 if size == 1 else None, 2048, 1),
        (lambda size: 0.3, 2048, 2048),  # the memory has coarse pieces
        (lambda size: 0.3, 3, 3),
        (lambda size: 0.1 if size < 700 else None, 2048, 699),  # a cliff that no line shows
    ],
)
def test_edges_of_the_search(used, most, found):
    asked = []
    result = largest_that_fits(lambda size: (asked.append(size), used(size))[1], most)
    assert len(asked) <= MAX_PROBES
    assert 0.9 * found <= result <= found


def test_a_batch_that_fits_is_made_at_once(search, memory):
    batch, tried = search(rows=64)
    assert batch == Batch(size=64, accumulate=1, rows=64)
    assert (tried, memory.is_tight) == ([4, 16, 64], False)


def test_a_larger_one_is_accumulated(search, caplog, memory):
    caplog.set_level(logging.INFO)
    batch, tried = search(rows=2048)
    assert (batch.rows, batch.accumulate * batch.size >= 2048, batch.size <= 282) == (2048, True, True)
    assert (len(tried) <= 5, memory.is_tight) == (True, True)
    assert caplog.messages[-1].startswith(f"Batches of {batch.size} rows, {batch.accumulate} for an optimizer step of")


def test_the_result_is_kept_for_the_next_run(search, begin, memory):
    first, tried = search()
    again, probes = search(token=2)
    assert (again, len(probes), len(tried) > 1) == (first, 1, True)
    assert len(search(model=nn.Linear(8, 2), token=3)[1]) > 1
    fewer, probes = search(per_row=9, token=4)  # the rows have become larger
    assert (len(probes) > 1, fewer.size < first.size) == (True, True)
    assert len(search(per_row=9, token=5)[1]) == 1


@pytest.mark.parametrize(
    "lease",
    [{"model": "v100"}, {"share": 0.5}, {"memory_bytes": 1}],
)
def test_another_device_or_share_has_a_result_of_its_own(search, monkeypatch, lease):
    monkeypatch.setenv(LEASE_VARIABLE, a_task_lease(simulated=True).model_dump_json())
    search()
    monkeypatch.setenv(LEASE_VARIABLE, a_task_lease(simulated=True, **lease).model_dump_json())
    assert len(search(token=2)[1]) > 1


def test_what_is_kept_and_can_not_be_read_is_written_anew(search, begin, folder_of_place, caplog):
    search()
    (kept,) = folder_of_place.parent.parent.glob("batch_sizes.json")
    kept.write_text('{"results": {"x": {"value": 7}}}')
    assert len(search(token=2)[1]) > 1
    assert "is written anew" in caplog.text
    assert len(search(token=3)[1]) == 1
    assert len(json.loads(kept.read_text())["results"]) == 1


def test_a_store_that_does_not_answer_costs_only_the_search(search, caplog, monkeypatch):
    class Silent:
        def read(self, key, *, at_most):
            raise CheckpointStoreUnavailable("to read", found="no answer", remedy="Wait")

        replace = read

    batch, tried = search(store=Silent())
    assert (batch.size > 200, len(tried) > 1) == (True, True)
    assert ["can't be read" in text or "not kept" in text for text in caplog.messages].count(True) == 2


def test_not_even_one_row(search):
    with pytest.raises(OutOfMemory, match="A batch of one row can't be used; found no memory for it"):
        search(per_row=5000)


def test_another_error_of_the_step_is_the_tasks_own(search):
    def broken(size):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        search(step=broken)


def test_a_loss_that_is_no_number_is_said_once(search, caplog):
    search(step=lambda size: torch.tensor(float("nan")))
    assert [text for text in caplog.messages if "loss" in text] == ["The loss of a trial step with 4 rows is nan."]


def test_batchnorm_does_not_see_the_whole_batch(search, caplog):
    search(model=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    assert "The model has BatchNorm, which sees" in caplog.text
    caplog.clear()
    search(model=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), rows=16)
    assert "BatchNorm" not in caplog.text


@pytest.mark.parametrize("target", [0, -1, 2.5, True, 1 << 30, "2048"])
def test_a_wrong_target_is_refused(target):
    with pytest.raises(RequestError, match="target"):
        batch_search._rows_of_rank(target)


def test_a_sharded_model_is_refused(search):
    class DTensor(nn.Parameter):
        pass

    model = nn.Linear(2, 2)
    model.weight.__class__ = DTensor
    with pytest.raises(RequestError, match="sharded"):
        search(model=model)


class Lossy(nn.Module):
    """Draws random numbers, counts, has buffers that are not saved, and normalises."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, rows):
        self.calls += 1
        return self.layers(rows)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_trial_changes_nothing(has_begun, fails):
    torch.manual_seed(1)
    model = Lossy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = LossScaler("cpu")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    metrics = {"seen": [1, 2], "sum": torch.ones(3), "best": 0.5}
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler, "metrics": metrics}

    def step(size):
        model.train()
        optimizer.zero_grad()
        loss = model(torch.randn(size, 4) * random.random() * np.random.rand()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        metrics["seen"].append(size)
        metrics["sum"] += size
        metrics["best"] = loss.item()
        model.eval()

    if has_begun:
        step(8)
        model(torch.randn(2, 4)).sum().backward()  # gradients of a step that goes on
    model.layers[2].eval()

    def everything():
        draws = torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())
        gradients = [None if weight.grad is None else weight.grad.tolist() for weight in model.parameters()]
        modes = [part.training for part in model.modules()]
        staged = stage(parts)
        arrays = {name: array.tolist() for name, array in staged.arrays.items()}
        return staged.text(), arrays, draws, gradients, modes, model.calls.item()

    before = everything()
    weights = list(model.parameters())
    try:
        with untouched(parts):
            step(4)
            step(16)
            if fails:
                raise MemoryError
    except MemoryError:
        assert fails
    assert everything() == before
    assert all(now is then for now, then in zip(model.parameters(), weights, strict=True))
    assert metrics is parts["metrics"]


def test_a_state_that_can_not_be_restored_is_refused_before_anything_happens():
    with pytest.raises(RequestError, match=r"state\['file'\]"), untouched({"file": open}):
        raise AssertionError("not reached")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_accumulating_is_the_large_batch(dtype, tolerance, kind):
    """100 steps; the losses of both are equal to this tolerance, relatively."""

    def losses(batch):
        torch.manual_seed(3)
        if kind == "mlp":
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        else:
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            model = nn.Sequential(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 1))
        model = model.to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(5)
        for _ in range(100):
            rows = torch.randn(batch.rows, 5, 8, generator=generator, dtype=dtype)
            wanted = rows.sum(-1, keepdim=True).tanh()
            optimizer.zero_grad()
            total = 0.0
            for weight, (part, targets) in batch.parts((rows, wanted)):
                loss = (model(part) - targets).square().mean() * weight
                loss.backward()
                total += loss.item()
            optimizer.step()
            yield total

    large = list(losses(Batch(size=32, accumulate=1, rows=32)))
    small = list(losses(Batch(size=7, accumulate=5, rows=32)))  # the last part has 4 rows
    assert small == pytest.approx(large, rel=tolerance)
    assert large[-1] < large[0]


def test_parts_of_what_loaders_return():
    batch = Batch(size=2, accumulate=2, rows=3)
    rows = {"x": torch.arange(3), "y": [np.arange(3), torch.arange(6).reshape(3, 2)], "scale": torch.tensor(5.0)}
    (first, a), (second, b) = batch.parts(rows)
    assert (first, second) == (2 / 3, 1 / 3)
    assert (a["x"].tolist(), b["x"].tolist(), b["y"][0].tolist(), b["y"][1].tolist()) == ([0, 1], [2], [2], [[4, 5]])
    assert a["scale"].item() == b["scale"].item() == 5
    for wrong in ({"x": torch.arange(3), "y": torch.arange(4)}, "text", 5):
        with pytest.raises(RequestError, match="rows"):
            list(batch.parts(wrong))


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("x"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("NPU out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_say_that_memory_is_short(error, is_memory):
    assert is_out_of_memory(error) == is_memory


RANK = """
import torch, torch.distributed as dist
from torch import nn
from hetero_airflow.runtime import batch_size
from hetero_airflow.runtime.compute import batch_search

dist.init_process_group("gloo")
rank = dist.get_rank()

class Memory:
    limit_bytes = 1000
    rows = 0
    def highest_bytes(self, call):
        self.rows = 0
        call()
        return 100 + self.rows * (9 if rank else 3)
    def release(self): pass
    def settle(self, *, is_tight): pass

memory = Memory()
batch_search.device_memory = lambda device, leased: memory
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
tried = []

def step(size):
    tried.append(size)
    memory.rows = size
    if rank and size == 16:
        raise MemoryError  # the other rank goes on
    model(torch.ones(size, 4)).sum().backward()

batch = batch_size(step, 1024, state={"model": model})
say([batch.size, batch.accumulate, batch.rows, tried])
dist.destroy_process_group()
"""


def test_all_ranks_get_the_size_that_fits_on_each(run_ranks, place):
    first, second = run_ranks(RANK, {CHECKPOINT_VARIABLE: place.model_dump_json()})
    assert first == second
    size, accumulate, rows, tried = first
    assert (rows, size < 16, size * accumulate >= 512, len(tried) <= MAX_PROBES) == (512, True, True, True)


STEPS = """
import json, resource, torch
resource.setrlimit(resource.RLIMIT_DATA, (600 << 20, 600 << 20))
from hetero_airflow.runtime import batch_size

torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.ones(100_000))
optimizer = torch.optim.Adam([weight])
tried = []

def step(size, length=100_000):
    tried.append(size)
    optimizer.zero_grad()
    (torch.ones(size, length) * weight[:length]).sin().cos().mean().backward()
    optimizer.step()

batch = batch_size(step, 1 << 20, state={"optimizer": optimizer})
probes = len(tried)
for number in range(10):
    step(batch.size, 100_000 - number % 7 * 10_000)
print(json.dumps([batch.size, probes]))
"""


def test_a_process_with_a_limit_never_comes_to_it(place):
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=os.environ | {CHECKPOINT_VARIABLE: place.model_dump_json()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    size, probes = json.loads(done.stdout)
    assert 50 < size < 500
    assert probes <= MAX_PROBES
