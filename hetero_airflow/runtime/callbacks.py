"""Checkpoints for those whose loop is not their own: Lightning's Trainer, and what Accelerate has prepared.

Neither library is imported before one of these is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hetero_airflow.runtime import checkpoint
from hetero_airflow.runtime.save_interval import MAX_STEPS
from hetero_airflow.runtime.state.restoring import Rng
from hetero_airflow.runtime.step_loop import StepLoop


def lightning_checkpoint(every: object = "5m") -> Any:
    """A callback for Lightning's Trainer that resumes, saves by `every`, and stops at a notice.

    A step is an optimizer step. Lightning begins an epoch that was interrupted with its first batch again, unless its
    loader is one with a ``state_dict`` (torchdata's StatefulDataLoader). For strategies that shard the model, save with
    `checkpoint.save_distributed` instead.

    ::

        trainer = Trainer(max_epochs=10, callbacks=[lightning_checkpoint(every="5m")], enable_checkpointing=False)

    :raises RequestError: an `every` that can't be used; when training begins
    """
    lightning: Any = import_module("lightning.pytorch")

    class LightningCheckpoint(lightning.Callback):  # type: ignore[misc]
        """Made here, since its base class is imported here."""

        _loop: StepLoop
        _step = -1

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Optimizers are there, and no batch is done yet."""
            parts = {"module": pl_module, "trainer": TrainerState(trainer), "rng": Rng()}
            self._loop = StepLoop(checkpoint.session(), MAX_STEPS, every, state=parts)
            self._loop.begin()
            self._step = trainer.global_step - 1

        def on_train_batch_end(self, trainer: Any, *_: object) -> None:
            """A batch is done; while gradients are accumulated, no step is."""
            if trainer.global_step - 1 != self._step:
                self._step = trainer.global_step - 1
                self._loop.after(self._step)

        def on_fit_end(self, *_: object) -> None:
            """All is trained: what is being saved has to arrive."""
            self._loop.end()

    return LightningCheckpoint()


class TrainerState:
    """What Lightning's Trainer knows beside the module: optimizers, schedulers, precision, and where it is."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """As the Trainer puts it into its own checkpoints."""
        trainer = self._trainer
        return {
            "optimizers": [one.state_dict() for one in trainer.optimizers],
            "schedulers": [one.scheduler.state_dict() for one in trainer.lr_scheduler_configs],
            "precision": trainer.precision_plugin.state_dict(),
            "loop": trainer.fit_loop.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back, before the loop runs."""
        trainer = self._trainer
        schedulers = [one.scheduler for one in trainer.lr_scheduler_configs]
        _load_each(trainer.optimizers, state["optimizers"])
        _load_each(schedulers, state["schedulers"])
        trainer.precision_plugin.load_state_dict(state["precision"])
        trainer.fit_loop.load_state_dict(state["loop"])


class AccelerateState:
    """All that an Accelerator has prepared or registered, as a state for `checkpoint.steps` or `checkpoint.save`.

    Call `accelerator.prepare` first. Accelerate's own `save_state` pickles, so it is not used.

    ::

        for step in checkpoint.steps(10_000, state={"all": AccelerateState(accelerator), "rng": checkpoint.Rng()}):
            ...
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        """Of models (unwrapped), optimizers, schedulers, the gradient scaler, and objects for checkpointing."""
        return {name: [one.state_dict() for one in parts] for name, parts in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back into what is prepared now, in the same order."""
        for name, parts in self._parts().items():
            _load_each(parts, state[name])

    def _parts(self) -> dict[str, list[Any]]:
        accelerator = self._accelerator
        scaler = accelerator.scaler
        return {
            "models": [accelerator.unwrap_model(model) for model in accelerator._models],
            "optimizers": list(accelerator._optimizers),
            "schedulers": list(accelerator._schedulers),
            "scaler": [] if scaler is None else [scaler],
            "custom": list(accelerator._custom_objects),
        }


def _load_each(parts: list[Any], states: list[Any]) -> None:
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
