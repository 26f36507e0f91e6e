"""Train a digit recogniser that survives kills and preemptions: it continues from its last checkpoint.

::

    train ───────────────────────────────┐
    is_good_enough ──► evaluate ─────────┴──► report

Training saves a checkpoint every few steps. When a checkpoint is accurate enough on the training images, the sensor
lets the evaluation begin while the training continues. The data are the 1,797 handwritten digits of scikit-learn: three
quarters for training, and a quarter that training never sees.

Try it: while `train` runs, kill its process, restart the scheduler, or let a task of a higher priority take its device.
The same try continues from the last checkpoint, on the same or another device.
"""

import time
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag

from hetero_airflow.operators import task
from hetero_airflow.runtime import checkpoint, torch_device
from hetero_airflow.sensors import CheckpointSensor

GOOD_ENOUGH = 0.9


# keep_last: the checkpoint of the evaluation must still exist when the evaluation begins
@task.device(device=["gpu", "npu", "cpu"], checkpoint={"keep_last": 100})
def train(params: dict[str, Any]) -> dict[str, Any]:
    """Train step by step, from the step after the last checkpoint."""
    import torch

    torch.manual_seed(params["seed"])
    device = torch_device()
    images, labels = (part.to(device) for part in digits("training"))
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state = {"model": model, "optimizer": optimizer, "rng": checkpoint.Rng()}
    metrics: dict[str, float] = {}
    for step in checkpoint.steps(params["steps"], every=params["save_every"], state=state, metrics=metrics):
        batch = torch.randint(len(labels), (64,)).to(device)
        scores = model(images[batch])
        loss = torch.nn.functional.cross_entropy(scores, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(params["seconds_per_step"])
        if checkpoint.is_due():
            metrics.update(loss=loss.item(), accuracy=accuracy(model, images, labels))
            print(f"step {step} on {device}: {metrics}")
    return {"steps": params["steps"], "accuracy": accuracy(model, images, labels)}


@task.device(device=["gpu", "npu", "cpu"])
def evaluate(published: dict[str, Any]) -> dict[str, Any]:
    """The share of the unseen images that the model of a checkpoint classifies correctly."""
    device = torch_device()
    images, labels = (part.to(device) for part in digits("evaluation"))
    model = network().to(device)
    model.load_state_dict(checkpoint.open_published(published).state["model"])
    return {"step": published["step"], "accuracy": accuracy(model, images, labels)}


@task
def report(trained: dict[str, Any], evaluated: dict[str, Any]) -> str:
    """The results as a text."""
    text = (
        f"Accuracy after {trained['steps']} steps: {trained['accuracy']:.1%} of the training images; "
        f"after step {evaluated['step']}: {evaluated['accuracy']:.1%} of the unseen images."
    )
    print(text)
    return text


@dag(
    schedule=None,
    params={
        "steps": Param(300, type="integer", minimum=100, description="One batch of 64 images each."),
        "seconds_per_step": Param(0.02, type="number", minimum=0, description="Use more to have time to kill it."),
        "save_every": Param(20, type="integer", minimum=1, description="Steps between two checkpoints."),
        "seed": Param(7, type="integer", minimum=0),
    },
    tags=["hetero_airflow", "example"],
    doc_md=__doc__,
)
def train_resumable() -> None:
    trained = train()
    is_good_enough = CheckpointSensor(
        task_id="is_good_enough",
        of_task="train",
        metric="accuracy",
        above=GOOD_ENOUGH,
        timeout=timedelta(hours=12).total_seconds(),
    )
    report(trained, evaluate(is_good_enough.output))


def digits(part: str) -> tuple[Any, Any]:
    """The images of one part, float32 [n, 1, 8, 8] from 0 to 1, and their labels, int64 [n]."""
    import torch
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = torch.tensor(data.images / 16, dtype=torch.float32)[:, None], torch.tensor(data.target)
    is_unseen = torch.arange(len(labels)) % 4 == 3
    chosen = is_unseen if part == "evaluation" else ~is_unseen
    return images[chosen], labels[chosen]


def network() -> Any:
    """A network for float32 [n, 1, 8, 8] that returns ten scores per image."""
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 4 * 4, 10)),
    )


def accuracy(model: Any, images: Any, labels: Any) -> float:
    """The share of the images that the model classifies correctly."""
    import torch

    with torch.inference_mode():
        return float((model(images).argmax(dim=1) == labels).float().mean())


train_resumable()
