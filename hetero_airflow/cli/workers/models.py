"""``airflow hetero models``: the models that a request can name without a vendor, and which devices each matches."""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.output import cell, show, show_json, table
from hetero_airflow.errors import HeteroError
from hetero_airflow.executor.explanation.device_text import count
from hetero_airflow.model.device import device_tokens
from hetero_airflow.model.devices.names import KnownProduct, known_products, matches_model, other_names
from hetero_airflow.model.worker import Worker


@action
def models(args: Namespace) -> None:
    """Print the known models; without a database, nothing is known of the workers."""
    try:
        workers: tuple[Worker, ...] | None = open_store().snapshot().workers
    except HeteroError:
        workers = None
    if args.json:
        show_json(list(models_json(workers)))
    else:
        show(*models_report(workers))


def models_json(workers: Iterable[Worker] | None) -> Iterator[dict[str, Any]]:
    """The rows as JSON values; ``devices`` is null if the workers are unknown. Pure."""
    known_workers = None if workers is None else tuple(workers)
    for product in known_products():
        yield {
            "vendor": product.vendor,
            "kind": product.kind,
            "model": product.model,
            "other_names": other_names(product),
            "memory_gib": product.memory_gib,
            "devices": None if known_workers is None else matching_devices(product, known_workers),
        }


def models_report(workers: Iterable[Worker] | None) -> Iterator[RenderableType]:
    """The rows as a table, and how to name any other model. Pure."""
    rows = [
        (
            cell(row["model"]),
            cell(f"{row['vendor']} {row['kind']}"),
            cell("-" if row["memory_gib"] is None else f"{row['memory_gib']:g} GiB"),
            cell(", ".join(row["other_names"])),
            cell(_here(row["devices"])),
        )
        for row in models_json(workers)
    ]
    yield table(("MODEL", "VENDOR", "MEMORY", "OTHER NAMES", "MATCHES HERE"), rows, whole=0)
    yield cell('Any other model works with its vendor before it: device="vendor/model".')
    if workers is None:
        yield cell("The database does not answer, so it is not known what matches here.", style="yellow")


def matching_devices(product: KnownProduct, workers: Iterable[Worker]) -> dict[str, int]:
    """Worker id → number of its devices that a request for the product's model matches."""
    found = Counter(
        worker.id
        for worker in workers
        for device in worker.devices
        if device.vendor == product.vendor and matches_model(product.model, device_tokens(device))
    )
    return dict(found)


def _here(devices: Mapping[str, int] | None) -> str:
    if not devices:
        return "?" if devices is None else ""
    return f"{count(sum(devices.values()), 'device')} on {count(len(devices), 'worker')}"
