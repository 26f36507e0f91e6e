"""Batches arrive on the device that the training computes on."""

from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hetero_airflow.errors import RequestError
from hetero_airflow.runtime import checkpoint
from hetero_airflow.runtime.loading.device_copy import DeviceCopy, device_copy


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


class Moves:
    """Not a tensor, but it can be moved."""

    device = "cpu"

    def to(self, device: object) -> "Moves":
        moved = Moves()
        moved.device = str(device)
        return moved


def test_all_tensors_of_a_batch_are_copied() -> None:
    copy = device_copy("meta")
    assert copy is not None
    batch: dict[str, Any] = {"image": torch.ones(2), "more": [Pair(torch.ones(3), "text"), (1, Moves())], "none": None}
    copied = copy.end(copy.begin(batch))
    pair, (number, moved) = copied["more"]
    assert [copied["image"].device.type, pair.left.device.type, moved.device] == ["meta"] * 3
    assert (type(pair), pair.right, number, copied["none"]) == (Pair, "text", 1, None)
    assert batch["image"].device.type == "cpu"


def test_nothing_is_copied_for_a_cpu() -> None:
    assert device_copy(None) is device_copy("cpu") is device_copy(torch.device("cpu")) is None


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 1.5, ["cuda"]])
def test_an_unknown_device_is_refused(device: object) -> None:
    with pytest.raises(RequestError, match=r"device.*torch_device\(\)"):
        checkpoint.loader([1], device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has such a device")
def test_a_device_that_is_not_there_is_refused_before_the_first_batch() -> None:
    with pytest.raises(RequestError, match="cuda"):
        checkpoint.loader([1], device="cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_a_gpu_computes_with_whole_batches(workers: int) -> None:
    numbers = torch.arange(64 * 100_000, dtype=torch.float64).reshape(64, -1)
    batches = DataLoader(TensorDataset(numbers), batch_size=4, num_workers=workers)
    load = checkpoint.loader(batches, device="cuda:0")
    sums = []
    for _ in range(160):
        (batch,) = next(load)
        for _ in range(20):
            batch = batch * 2 / 2
        sums.append(batch.sum())
    expected = [part.sum().item() for part in numbers.split(4)] * 10
    assert [value.item() for value in sums] == expected


def test_a_copy_leaves_the_batches_as_they_are() -> None:
    copy = DeviceCopy(torch.device("cpu"))
    batch = [torch.arange(3), {"a": 1}]
    assert repr(copy.end(copy.begin(batch))) == repr(batch)
