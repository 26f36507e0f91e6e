from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.contract.notice import NOTICE
from hetero_airflow.runtime import checkpoint
from hetero_airflow.runtime.callbacks import AccelerateState, TrainerState, lightning_checkpoint
from hetero_airflow.runtime.compute.mixed_precision import LossScaler
from hetero_airflow.runtime.state.tree import stage
from hetero_airflow.settings import CHECKPOINT_VARIABLE, CONTROL_VARIABLE


@pytest.fixture
def control(tmp_path, monkeypatch):
    place = CheckpointPlace(url=(tmp_path / "store").as_uri(), path="a/b/c/0")
    monkeypatch.setenv(CHECKPOINT_VARIABLE, place.model_dump_json())
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    checkpoint._session.cache_clear()
    return tmp_path


class Part:
    """Something with a state."""

    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Prepared:
    """The names of accelerate 1.15's Accelerator that AccelerateState reads."""

    def __init__(self, *values: int) -> None:
        self._models, self._optimizers, self._schedulers, self._custom_objects = ([Part(value)] for value in values[:4])
        self.scaler = Part(values[4]) if len(values) > 4 else None

    def unwrap_model(self, model: Part) -> Part:
        return model


@pytest.mark.parametrize("values", [(1, 2, 3, 4), (1, 2, 3, 4, 5)])
def test_all_objects_that_accelerate_prepared_are_restored(values) -> None:
    state = AccelerateState(Prepared(*values))
    restored = AccelerateState(Prepared(*[0] * len(values)))
    restored.load_state_dict(state.state_dict())
    assert stage(restored).tree == stage(state).tree


@pytest.mark.parametrize(("saved", "now"), [((1, 2, 3, 4), (0, 0, 0, 0, 9)), ((1, 2, 3, 4, 5), (0, 0, 0, 0))])
def test_a_device_with_another_precision_has_a_scaler_more_or_less(saved, now) -> None:
    restored = Prepared(*now)
    AccelerateState(restored).load_state_dict(AccelerateState(Prepared(*saved)).state_dict())
    assert [part.value for (part,) in (restored._models, restored._optimizers, restored._custom_objects)] == [1, 2, 4]
    assert restored.scaler is None or restored.scaler.value == 9


def test_another_number_of_optimizers_is_refused() -> None:
    state = AccelerateState(Prepared(1, 2, 3, 4)).state_dict()
    with pytest.raises(ValueError, match="zip"):
        AccelerateState(Prepared(1, 2, 3, 4)).load_state_dict({**state, "optimizers": []})


def test_a_real_accelerator_is_saved_and_restored() -> None:
    accelerate = pytest.importorskip("accelerate")

    def prepared():
        model = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(model.parameters())
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3))
        return model, optimizer, AccelerateState(accelerator)

    model, optimizer, state = prepared()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    *_, restored = prepared()
    restored.load_state_dict(state.state_dict())
    assert stage(restored).text() == stage(state).text()


def test_a_trainer_goes_on_where_the_loss_is_scaled_anew() -> None:
    amp = pytest.importorskip("lightning.pytorch.plugins.precision")

    def state(precision_plugin):
        return TrainerState(
            SimpleNamespace(optimizers=[], lr_scheduler_configs=[], fit_loop=Part(1), precision_plugin=precision_plugin)
        )

    bf16, fp16 = amp.MixedPrecision("bf16-mixed", "cpu"), amp.MixedPrecision("16-mixed", "cpu", LossScaler("cpu"))
    saved = fp16.state_dict()
    state(fp16).load_state_dict(state(bf16).state_dict())
    state(bf16).load_state_dict(state(fp16).state_dict())
    assert fp16.state_dict() == saved


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")  # Lightning's own
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended:UserWarning")
@pytest.mark.parametrize("stop_after", [6, 8])  # within an epoch, and at its end
def test_a_trainer_stops_at_a_notice_and_goes_on(control, stop_after: int) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.losses: list[float] = []

        def training_step(self, batch, batch_idx):
            loss = self.layer(batch[0]).square().mean()
            self.losses.append(loss.item())
            if self.stop_after == len(self.losses):
                (control / NOTICE).touch()
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    def fit(stop_after: int) -> Module:
        lightning.seed_everything(1)
        module = Module()
        module.stop_after = stop_after
        loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=1)
        trainer = lightning.Trainer(
            max_epochs=4,
            accelerator="cpu",
            callbacks=[lightning_checkpoint(every=1)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        checkpoint._session.cache_clear()
        trainer.fit(module, loader)
        return module

    with pytest.raises(checkpoint.Stopped) as stopped:
        fit(stop_after)
    assert stopped.value.step == stop_after - 1
    (control / NOTICE).unlink()
    resumed = fit(stop_after=0)
    (control / "store").rename(control / "elsewhere")
    whole = fit(stop_after=0)
    assert len(whole.losses) == 16
    assert resumed.losses == whole.losses[stop_after:]
