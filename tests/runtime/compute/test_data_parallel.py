"""Compressed gradients send less, reach the same loss, and go on after an interruption."""

import pytest
import torch
import torch.distributed as dist

from hetero_airflow.runtime import data_parallel
from hetero_airflow.runtime.checkpoint import _session
from hetero_airflow.settings import CHECKPOINT_VARIABLE, COMPRESS_GRADIENTS_VARIABLE, LEASE_VARIABLE

TRAIN = """
import os, sys
import torch.distributed as dist
from torch import nn
from hetero_airflow.runtime import checkpoint, data_parallel

sent = 0
all_reduce = dist.all_reduce

def counted(tensor, *arguments, **options):
    global sent
    sent += tensor.numel() * tensor.element_size()
    return all_reduce(tensor, *arguments, **options)

torch.manual_seed(3)
teacher = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
model = data_parallel(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)))
unused = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
generator = torch.Generator()
steps, stop = int(os.environ["STEPS"]), int(os.environ.get("STOP", "-1"))
losses, sends = [], []
state = {"model": model, "optimizer": optimizer}
rank, ranks = dist.get_rank(), dist.get_world_size()
for step in checkpoint.steps(steps, every=20, state=state):
    generator.manual_seed(step)
    rows = torch.randn(32, 64, generator=generator)
    mine = rows[rank * 32 // ranks : (rank + 1) * 32 // ranks]
    loss = (model(mine) - teacher(mine).detach()).square().mean()
    optimizer.zero_grad()
    sent = 0
    dist.all_reduce = counted
    loss.backward()
    dist.all_reduce = all_reduce
    sends.append(sent)
    optimizer.step()
    all_reduce(loss)
    losses.append(loss.item() / ranks)
    if step == stop:
        checkpoint.wait()
        break
memory = model._memory
say({
    "losses": losses,
    "sends": sends,
    "bytes": sum(weight.numel() * 4 for weight in model.parameters()),
    "collected": memory and [bucket["error"].abs().sum().item() for bucket in memory.state()["buckets"]],
    "restored": memory and len(memory._restored),
    "weights": sum(weight.double().sum().item() for weight in model.parameters()),
})
dist.destroy_process_group()
"""


@pytest.fixture
def train(run_ranks, place):
    """Trains with the ranks; what rank 0 says, after all have come to the same weights."""

    def trained(compression, steps=200, count=2, **more):
        environment = {
            CHECKPOINT_VARIABLE: place.model_copy(update={"token": next(tokens)}).model_dump_json(),
            COMPRESS_GRADIENTS_VARIABLE: compression,
            "STEPS": str(steps),
            **more,
        }
        said = run_ranks(TRAIN, environment, count)
        assert len({rank["weights"] for rank in said}) == 1
        return said[0]

    tokens = iter(range(1, 100))
    return trained


@pytest.mark.parametrize(("compression", "part"), [("fp16", 0.51), ("powersgd", 0.1)])
def test_less_is_sent_for_the_same_loss(train, tmp_path, place, compression, part):
    whole = train("")
    (tmp_path / "store").rename(tmp_path / "whole")
    compressed = train(compression)
    sent = compressed["sends"][10:] if compression == "powersgd" else compressed["sends"]
    assert max(sent) <= part * compressed["bytes"]
    last, wanted = (sum(run["losses"][-10:]) / 10 for run in (compressed, whole))
    assert last <= 1.02 * wanted
    assert wanted < 0.5 * whole["losses"][0]


@pytest.mark.parametrize("count", [1, 2])
def test_powersgd_goes_on_with_what_it_remembers(train, tmp_path, count):
    whole = train("powersgd", steps=120)
    (tmp_path / "store").rename(tmp_path / "whole")
    first = train("powersgd", steps=120, STOP="60")
    assert all(first["collected"])
    second = train("powersgd", steps=120, count=count)
    assert (len(second["losses"]), second["restored"]) == (60, 0)
    assert sum(second["losses"]) == pytest.approx(sum(whole["losses"][60:]), rel=0.02)
    assert max(second["sends"][2:]) <= 0.1 * second["bytes"]


def test_a_task_may_change_its_compression(train):
    train("powersgd", steps=40)
    assert len(train("fp16", steps=60)["losses"]) == 20
    assert len(train("powersgd", steps=80)["losses"]) == 20


def test_ranks_that_do_not_agree_are_refused(run_ranks, place):
    each = [{COMPRESS_GRADIENTS_VARIABLE: "fp16"}, {COMPRESS_GRADIENTS_VARIABLE: ""}]
    with pytest.raises(
        AssertionError, match=r"compress_gradients='(fp16)?' can't be used; found other values on other ranks"
    ):
        run_ranks(TRAIN, {CHECKPOINT_VARIABLE: place.model_dump_json(), "STEPS": "1"}, each=each)


def test_outside_of_torchrun_there_is_one_rank(monkeypatch, place):
    monkeypatch.delenv(LEASE_VARIABLE, raising=False)
    monkeypatch.setenv(CHECKPOINT_VARIABLE, place.model_dump_json())
    monkeypatch.setenv(COMPRESS_GRADIENTS_VARIABLE, "powersgd")
    _session.cache_clear()
    model = data_parallel(torch.nn.Linear(64, 64))
    try:
        for _ in range(12):
            model(torch.zeros(2, 64)).sum().backward()  # no gradient but that of the bias
        assert torch.isfinite(model.module.weight.grad).all()
        model.collect()
        assert set(model.state_dict()) == {"module.weight", "module.bias", "_extra_state"}
    finally:
        dist.destroy_process_group()
        _session.cache_clear()
