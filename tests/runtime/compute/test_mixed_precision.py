"""The precision fits the leased device, and a training goes on in another one."""

import logging
import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hetero_airflow.model.devices.features import accelerator_features, cpu_features
from hetero_airflow.runtime import device_features, precision
from hetero_airflow.runtime.checkpoint_session import CheckpointSession
from hetero_airflow.runtime.compute import mixed_precision
from hetero_airflow.runtime.compute.mixed_precision import Precision, precision_of
from hetero_airflow.runtime.device_features import leased_features
from hetero_airflow.runtime.step_loop import StepLoop
from hetero_airflow.settings import LEASE_VARIABLE
from hetero_airflow.testing import a_task_lease

V100, H100, P40 = (accelerator_features("nvidia", key) for key in ("7.0", "9.0", "6.1"))


def train(mixed: Precision, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[torch.dtype, float]:
    """A step; the type in which the model has computed, and the loss."""
    optimizer.zero_grad()
    with mixed.autocast():
        predicted = model(torch.ones(4, 8))
        loss = (predicted.float() - 1).square().mean()
    mixed.scaler.scale(loss).backward()
    mixed.scaler.step(optimizer)
    mixed.scaler.update()
    return predicted.dtype, loss.item()


@pytest.mark.parametrize(
    ("features", "dtype", "is_scaled", "lightning", "accelerate"),
    [
        (H100, torch.bfloat16, False, "bf16-mixed", "bf16"),
        (V100, torch.float16, True, "16-mixed", "fp16"),
        (P40, torch.float32, False, "32-true", "no"),
        (cpu_features("avx512_bf16"), torch.bfloat16, False, "bf16-mixed", "bf16"),
        (cpu_features(""), torch.float32, False, "32-true", "no"),
        (accelerator_features("nvidia", "99.0"), torch.float32, False, "32-true", "no"),
    ],
)
def test_a_model_computes_in_the_type_of_its_device_and_keeps_its_weights(
    features, dtype, is_scaled, lightning, accelerate
):
    torch.manual_seed(1)
    mixed = precision_of(features, "cpu")
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    computed, first = train(mixed, model, optimizer)
    assert (computed, mixed.dtype, mixed.scaler.is_enabled()) == (dtype, dtype, is_scaled)
    assert (mixed.lightning, mixed.accelerate) == (lightning, accelerate)
    assert model.weight.dtype is torch.float32
    losses = [train(mixed, model, optimizer)[1] for _ in range(20)]  # a scaler leaves out its first steps
    assert losses[-1] < first


@pytest.mark.parametrize(("before", "after"), [(H100, V100), (V100, H100), (V100, V100)])
def test_a_training_goes_on_in_another_precision(begin, before, after):
    def loop(session: CheckpointSession, features, steps: int) -> tuple[dict, Precision]:
        model, mixed = torch.nn.Linear(8, 1), precision_of(features, "cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        state = {"model": model, "optimizer": optimizer, "scaler": mixed.scaler}
        for _ in StepLoop(session, steps, every=1, state=state):
            train(mixed, model, optimizer)
        return {name: weight.clone() for name, weight in model.state_dict().items()}, mixed

    torch.manual_seed(1)
    weights, first = loop(begin(), before, 3)
    restored, second = loop(begin(), after, 3)  # all steps are done
    assert {name: weight.tolist() for name, weight in restored.items()} == {
        name: weight.tolist() for name, weight in weights.items()
    }
    if first.scaler.is_enabled() and second.scaler.is_enabled():
        assert second.scaler.state_dict() == first.scaler.state_dict()
    weights_after, _ = loop(begin(), after, 20)
    assert weights_after["weight"].tolist() != weights["weight"].tolist()


def test_the_log_says_what_is_chosen_and_why_nothing_is(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(mixed_precision, "leased_features", lambda: H100)
    assert precision().dtype is torch.bfloat16
    monkeypatch.setattr(mixed_precision, "leased_features", lambda: accelerator_features("amd", "gfx9999"))
    assert precision().dtype is torch.float32
    assert caplog.messages == [
        "Training in BF16 on Hopper.",
        "The features of the leased device are not known (no rule for its target gfx9999): it trains in FP32.",
    ]


def test_accelerate_takes_it():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision_of(H100, "cpu").accelerate)
    model = accelerator.prepare(torch.nn.Linear(8, 1))
    with accelerator.autocast():
        computed = torch.nn.functional.linear(torch.ones(2, 8), accelerator.unwrap_model(model).weight)
    assert computed.dtype is torch.bfloat16


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")  # Lightning's own
def test_lightning_takes_it():
    lightning = pytest.importorskip("lightning.pytorch")
    seen: list[torch.dtype] = []

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch, _):
            predicted = self.layer(batch[0])
            seen.append(predicted.dtype)
            return predicted.float().square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        precision=precision_of(H100, "cpu").lightning,
        accelerator="cpu",
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(4, 8)), batch_size=2))
    assert seen == [torch.bfloat16] * 2


def test_the_features_are_those_of_the_processor_here(monkeypatch):
    monkeypatch.delenv(LEASE_VARIABLE, raising=False)
    if torch.cuda.is_available():
        pytest.skip("torch takes the GPU that is here")
    flags = Path("/proc/cpuinfo").read_text()
    has_bf16 = bool(re.search(r"\b(avx512_bf16|amx_bf16)\b", flags))
    assert (leased_features().training_dtype == "bf16") == has_bf16
    assert precision().dtype is (torch.bfloat16 if has_bf16 else torch.float32)


def test_a_leased_npu_has_the_features_of_its_series(monkeypatch):
    monkeypatch.setattr(device_features, "torch_device", lambda: torch.device("meta"))  # no torch_npu is here
    lease = a_task_lease(vendor="ascend", kind="npu", model="910b4", ids=("npu-0",))
    monkeypatch.setenv(LEASE_VARIABLE, lease.model_dump_json())
    assert leased_features().architecture == "Ascend 910B, 910C"


@pytest.mark.gpu
def test_a_leased_gpu_trains_in_its_precision(monkeypatch):
    monkeypatch.delenv(LEASE_VARIABLE, raising=False)
    mixed = precision()
    major, minor = torch.cuda.get_device_capability()
    known = accelerator_features("nvidia", f"{major}.{minor}")
    assert (leased_features().dtypes, known.unknown) == (known.dtypes, None)
    model = torch.nn.Linear(8, 1).cuda()
    with mixed.autocast():
        assert model(torch.ones(4, 8, device="cuda")).dtype is mixed.dtype
