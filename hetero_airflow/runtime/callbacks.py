"""Checkpoints for Lightning's Trainer and for Accelerate. The libraries are imported only when these are called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hetero_airflow.runtime import checkpoint
from hetero_airflow.runtime.checkpoint_session import MAX_STEPS
from hetero_airflow.runtime.state.restoring import Rng
from hetero_airflow.runtime.step_loop import StepLoop


def lightning_checkpoint(every: object = "5m") -> Any:
    """A callback for Lightning's Trainer that resumes, saves by `every`, and stops at a notice.

    A step is an optimizer step. Lightning restarts an interrupted epoch from its first batch, unless the loader has a
    ``state_dict`` (torchdata's StatefulDataLoader). If the strategy shards the model, use `checkpoint.save_distributed`
    instead.

    ::

        trainer = Trainer(max_epochs=10, callbacks=[lightning_checkpoint(every="5m")], enable_checkpointing=False)

    :raises RequestError: an invalid `every`; raised when training begins
    """
    lightning: Any = import_module("lightning.pytorch")

    class LightningCheckpoint(lightning.Callback):  # type: ignore[misc]
        """Defined here because its base class is imported here."""

        _loop: StepLoop
        _step = -1

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Restore; the optimizers exist, and no batch is done yet."""
            parts = {"module": pl_module, "trainer": TrainerState(trainer), "rng": Rng()}
            self._loop = StepLoop(checkpoint.session(), MAX_STEPS, every, state=parts)
            self._loop.begin()
            self._step = trainer.global_step - 1

        def on_train_batch_end(self, trainer: Any, *_: object) -> None:
            """Save and stop after an optimizer step; a batch that only accumulates gradients is not one."""
            if trainer.global_step - 1 != self._step:
                self._step = trainer.global_step - 1
                self._loop.after(self._step)

        def on_fit_end(self, *_: object) -> None:
            """Wait for the last save."""
            self._loop.end()

    return LightningCheckpoint()


class TrainerState:
    """The state of Lightning's Trainer without the module: optimizers, schedulers, precision, loop position."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """The same parts that the Trainer puts into its own checkpoints."""
        trainer = self._trainer
        return {
            "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "precision": trainer.precision_plugin.state_dict(),
            "loop": trainer.fit_loop.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it before the loop runs."""
        trainer = self._trainer
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        _load_each(trainer.optimizers, state["optimizers"])
        _load_each(schedulers, state["schedulers"])
        if state["precision"]:  # empty without a scaled loss, as on a device that trains in BF16
            trainer.precision_plugin.load_state_dict(state["precision"])
        trainer.fit_loop.load_state_dict(state["loop"])


class AccelerateState:
    """All objects that an Accelerator prepared or registered, as a state for `checkpoint.steps` or `checkpoint.save`.

    Call `accelerator.prepare` first. Accelerate's own `save_state` pickles, so it is not used.

    ::

        for step in checkpoint.steps(10_000, state={"all": AccelerateState(accelerator), "rng": checkpoint.Rng()}):
            ...
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        """The states of models (unwrapped), optimizers, schedulers, gradient scaler, and registered objects."""
        return {name: [part.state_dict() for part in parts] for name, parts in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the objects that are prepared now, in the same order. A scaler that was saved may be gone, or new."""
        for name, parts in self._parts().items():
            if name != "scaler" or (parts and state[name]):
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
