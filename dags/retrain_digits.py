"""Retrain a digit recogniser every week, with the same code on a GPU or on CPU cores.

::

    prepare_training ──► train ──┬──► evaluate ──► publish
    prepare_held_out ────────────┴──► predict_batch

The data are the 1,797 handwritten digits of scikit-learn: 60 % for training, 20 % to measure the accuracy, and 20 %
that stand for this week's new images. Each task says what hardware it needs. The executor chooses the device, and no
other task uses it at the same time.

Tasks pass small values through XCom, and data as files in a folder of the run. Nothing is pickled. The folder is
``$HETERO_AIRFLOW_DATA/retrain_digits``, by default in ``$AIRFLOW_HOME/data``. The newest good model is
``published/digits.safetensors`` in it, next to its card.
"""

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag
from airflow.sdk.exceptions import AirflowSkipException

from hetero_airflow.errors import NoLeaseError
from hetero_airflow.operators import task
from hetero_airflow.runtime import current_lease, torch_device

HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
FOLDER = Path(os.environ.get("HETERO_AIRFLOW_DATA", HOME / "data")) / "retrain_digits"


@task.device(device="cpu")
def prepare_training(run_id: str, params: dict[str, Any]) -> str:
    """The training images, each also shifted by one pixel in four directions."""
    import numpy as np

    images, labels = digits("training", params["seed"])
    shifts = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)]
    shifted = [shift(images, down, right) for down, right in shifts]
    return save_arrays(run_id, "training.npz", images=np.concatenate(shifted), labels=np.tile(labels, len(shifts)))


@task.device(device="cpu")
def prepare_held_out(run_id: str, params: dict[str, Any]) -> str:
    """The images that training never sees: some for the evaluation, some for the prediction."""
    images, labels = digits("evaluation", params["seed"])
    incoming, _ = digits("incoming", params["seed"])
    return save_arrays(run_id, "held_out.npz", images=images, labels=labels, incoming=incoming)


@task.device(device=["gpu", "cpu"])  # in order of preference: a whole GPU, else one CPU core
def train(training: str, run_id: str, params: dict[str, Any]) -> dict[str, Any]:
    """Train a small convolutional network; return the path of its weights, and the device."""
    import torch
    from safetensors.torch import save_file

    device = torch_device()
    torch.manual_seed(params["seed"])
    torch.backends.cudnn.deterministic = True
    data = load_arrays(training)
    images, labels = torch.tensor(data["images"], device=device), torch.tensor(data["labels"], device=device)
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(params["epochs"]):
        for batch in torch.randperm(len(labels)).to(device).split(128):
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1} of {params['epochs']} on {device}: loss {loss.item():.4f}")
    path = run_folder(run_id) / "model.safetensors"
    save_file({name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}, path)
    return {"model": str(path), "data_sha256": digest(Path(training)), "trained_on": used_device(str(device))}


@task.device(device=["gpu", "cpu"])
def evaluate(trained: dict[str, Any], held_out: str) -> float:
    """The share of the evaluation images that the model classifies correctly."""
    data = load_arrays(held_out)
    accuracy = float((predict(trained["model"], data["images"]) == data["labels"]).mean())
    print(f"accuracy {accuracy:.4f} on {len(data['labels'])} images")
    return accuracy


@task.device(device=["gpu", "cpu"])
def predict_batch(trained: dict[str, Any], held_out: str, run_id: str) -> str:
    """The model's labels for this week's new images."""
    incoming = load_arrays(held_out)["incoming"]
    return save_arrays(run_id, "predictions.npz", labels=predict(trained["model"], incoming))


@task
def publish(trained: dict[str, Any], accuracy: float, run_id: str, params: dict[str, Any]) -> str:
    """Copy the model and its card to the published folder; skip if the accuracy is too low."""
    threshold = params["accuracy_threshold"]
    if accuracy < threshold:
        cause = f"Not published: the accuracy {accuracy:.4f} is below the threshold {threshold}."
        print(cause)  # Airflow's log line says only that the task is skipped
        raise AirflowSkipException(cause)
    model = Path(trained["model"]).read_bytes()
    card = {
        "model_sha256": hashlib.sha256(model).hexdigest(),
        "accuracy": accuracy,
        "accuracy_threshold": threshold,
        "seed": params["seed"],
        "run_id": run_id,
        "data_sha256": trained["data_sha256"],
        "published_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "trained_on": trained["trained_on"],
    }
    target = FOLDER / "published" / "digits.safetensors"
    replace_file(target, model)
    replace_file(target.with_suffix(".json"), json.dumps(card, indent=2).encode())
    return str(target)


@dag(
    schedule="@weekly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        "accuracy_threshold": Param(
            0.95, type="number", minimum=0, maximum=1, description="The lowest accuracy to publish."
        ),
        "epochs": Param(10, type="integer", minimum=1, maximum=100),
        "seed": Param(7, type="integer", minimum=0, description="The same seed on the same device: the same model."),
    },
    tags=["hetero_airflow", "example"],
    doc_md=__doc__,
)
def retrain_digits() -> None:
    training, held_out = prepare_training(), prepare_held_out()
    trained = train(training)
    publish(trained, evaluate(trained, held_out))
    predict_batch(trained, held_out)


def digits(part: str, seed: int) -> tuple[Any, Any]:
    """The images of one part, float32 [n, 1, 8, 8] from 0 to 1, and their labels, int64 [n]."""
    import numpy as np
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = (data.images / 16).astype("float32")[:, None], data.target.astype("int64")
    order = np.random.default_rng(seed).permutation(len(labels))
    bounds = {"training": (0.0, 0.6), "evaluation": (0.6, 0.8), "incoming": (0.8, 1.0)}[part]
    chosen = order[slice(*(round(bound * len(order)) for bound in bounds))]
    return images[chosen], labels[chosen]


def shift(images: Any, down: int, right: int) -> Any:
    """The images shifted by at most one pixel; new pixels at the edge are empty."""
    import numpy as np

    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.roll(padded, (down, right), axis=(2, 3))[:, :, 1:-1, 1:-1]


def network() -> Any:
    """A network for float32 [n, 1, 8, 8] that returns ten scores per image."""
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
    )


def predict(model_path: str, images: Any) -> Any:
    """The digit in each image, int64 [n]."""
    import torch
    from safetensors.torch import load_file

    device = torch_device()
    model = network().to(device).eval()
    model.load_state_dict(load_file(model_path, device=str(device)))
    with torch.inference_mode():
        return model(torch.tensor(images, device=device)).argmax(dim=1).cpu().numpy()


def used_device(torch_name: str) -> dict[str, Any]:
    """The device of this task, for the card."""
    try:
        lease = current_lease()
    except NoLeaseError:
        return {"torch_device": torch_name, "lease": None, "simulated": False}
    return {
        "torch_device": torch_name,
        "device": f"{lease.vendor}/{lease.model}",
        "ids": lease.ids,
        "worker": lease.worker,
        "lease": lease.id,
        "simulated": lease.simulated,
    }


def run_folder(run_id: str) -> Path:
    """The folder of a run's files; a second try overwrites the files of the first."""
    folder = FOLDER / "runs" / f"run-{run_id}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save_arrays(run_id: str, name: str, **arrays: Any) -> str:
    """Save arrays to a file of the run; return its path."""
    import numpy as np

    path = run_folder(run_id) / name
    np.savez_compressed(path, **arrays)
    return str(path)


def load_arrays(path: str) -> dict[str, Any]:
    """The arrays of a file; pickled content is refused."""
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file; a reader sees the whole old content or the whole new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


retrain_digits()
