"""Retrain a digit recogniser when its data in an object store change.

::

    upload_digits ──► train
                      candidate ──► evaluate ──► publish

Airflow starts a run when a task of another DAG has updated the asset ``<lake>/training``. Training reads all objects
below that URL. Its host keeps them, and the next training gets that host if it is as good as others. It saves its
checkpoints in the same store. The sensor waits for the first checkpoint that is accurate enough on the training images.
The evaluation then runs on a CPU while the training continues. A model that is accurate enough on unseen images becomes
the object ``<lake>/model.safetensors``, which is an asset, too: it can start the DAG that uses the model.

``<lake>`` is the variable ``HETERO_AIRFLOW_LAKE`` of all processes of Airflow, by default ``s3://lake/digits``. The
objects below ``training`` and ``unseen`` are ``.npy`` files: uint8 [n, 65], 64 pixels and the label of each image.

Try it with ``{"upload_digits": true}``: the run first uploads the 1,797 handwritten digits of scikit-learn.
"""

import os
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.sdk import Asset, Param, dag
from airflow.sdk.exceptions import AirflowSkipException

from hetero_airflow.operators import task
from hetero_airflow.runtime import checkpoint, data, torch_device
from hetero_airflow.sensors import CheckpointSensor

LAKE = os.environ.get("HETERO_AIRFLOW_LAKE", "s3://lake/digits")
TRAINING = Asset(f"{LAKE}/training")
UNSEEN = f"{LAKE}/unseen"
CHECKPOINTS = f"{LAKE}/checkpoints"
MODEL = Asset(f"{LAKE}/model.safetensors")
WORTH_EVALUATING = 0.9


@task.device(device="cpu")
def upload_digits(params: dict[str, Any]) -> None:
    """Fill the store with digits to try the DAG; leave this task out where another DAG writes the data."""
    if not params["upload_digits"]:
        return
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = np.column_stack([digits.images.reshape(-1, 64), digits.target]).astype("uint8")
    is_unseen = np.arange(len(rows)) % 4 == 3
    parts = {f"{TRAINING.uri}/{number}.npy": part for number, part in enumerate(np.array_split(rows[~is_unseen], 4))}
    with TemporaryDirectory() as folder:
        for url, part in {**parts, f"{UNSEEN}/0.npy": rows[is_unseen]}.items():
            path = Path(folder) / "part.npy"
            np.save(path, part)
            data.publish(path, url)


# keep_last: the candidate must still exist when it is published
@task.device(device=["gpu", "npu", "cpu"], data=TRAINING.uri, checkpoint={"url": CHECKPOINTS, "keep_last": 100})
def train(params: dict[str, Any]) -> dict[str, float]:
    """Train from the last checkpoint on; return the measures of the last one."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(params["seed"])
    device = torch_device()
    images, labels = read_digits(TRAINING.uri)
    batches = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True, drop_last=True)
    loader = checkpoint.loader(batches, device=device)
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state = {"model": model, "optimizer": optimizer, "data": loader}
    metrics: dict[str, float] = {}
    for step in checkpoint.steps(params["steps"], every=params["save_every"], state=state, metrics=metrics):
        batch, answers = next(loader)
        loss = torch.nn.functional.cross_entropy(model(batch), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if checkpoint.is_due():
            metrics.update(loss=loss.item(), accuracy=accuracy(model, images.to(device), labels.to(device)))
            print(f"step {step} on {device}: {metrics}")
    return metrics


@task.device(device="cpu", data=UNSEEN)
def evaluate(candidate: dict[str, Any]) -> float:
    """The share of the unseen images that the candidate classifies correctly."""
    model = network()
    model.load_state_dict(checkpoint.open_published(candidate).state["model"])
    return accuracy(model, *read_digits(UNSEEN))


@task.device(device="cpu", outlets=[MODEL])
def publish(candidate: dict[str, Any], accuracy: float, params: dict[str, Any]) -> dict[str, Any]:
    """Write the weights of the candidate to the store; skip if they are not accurate enough."""
    from safetensors.torch import save_file

    threshold = params["accuracy_threshold"]
    if accuracy < threshold:
        cause = f"Not published: the accuracy {accuracy:.4f} is below the threshold {threshold}."
        print(cause)  # Airflow's log line says only that the task is skipped
        raise AirflowSkipException(cause)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(checkpoint.open_published(candidate).state["model"], path)
        return {**data.publish(path, MODEL.uri), "step": candidate["step"], "accuracy": accuracy}


@dag(
    schedule=[TRAINING],
    max_active_runs=1,
    params={
        "accuracy_threshold": Param(0.85, type="number", minimum=0, maximum=1, description="The lowest to publish."),
        "save_every": Param(100, type="integer", minimum=1, description="Steps between two checkpoints."),
        "seed": Param(7, type="integer", minimum=0),
        "steps": Param(1000, type="integer", minimum=100, description="One batch of 64 images each."),
        "upload_digits": Param(False, type="boolean", description="Fill the store first, to try the DAG."),
    },
    tags=["hetero_airflow", "example"],
    doc_md=__doc__,
)
def retrain_from_store() -> None:
    upload_digits() >> train()
    candidate = CheckpointSensor(
        task_id="candidate",
        of_task="train",
        url=CHECKPOINTS,
        metric="accuracy",
        above=WORTH_EVALUATING,
        timeout=timedelta(hours=12).total_seconds(),
    ).output
    publish(candidate, evaluate(candidate))


def read_digits(url: str) -> tuple[Any, Any]:
    """The images below a URL, float32 [n, 1, 8, 8] from 0 to 1, and their labels, int64 [n]."""
    import numpy as np
    import torch

    paths = sorted(data.cached_tree(url).glob("**/*.npy"))
    rows = torch.from_numpy(np.concatenate([np.load(path, allow_pickle=False) for path in paths]))
    return rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()


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


retrain_from_store()
