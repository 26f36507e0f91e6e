"""Simulated devices, for demonstrations, tests and rehearsals of a larger cluster.

``HETERO_AIRFLOW_SIMULATED_DEVICES="nvidia/h100-80gb:4,ascend/910b:2,mig-1g.10gb:2"`` adds eight devices. They are
marked ``simulated`` everywhere, also in their ids, and no library finds them.
"""

import os
import re
from collections import Counter

from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.sources.values import to_word
from hetero_airflow.errors import ProbeError, RequestError, shorten
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.devices.names import MODELS, matches_model, model_tokens, parse_device
from hetero_airflow.settings import SIMULATED_DEVICES_VARIABLE

MAX_DEVICES = 1024
MAX_TEXT = 8192
DEFAULT_MEMORY_BYTES = 16 << 30
"""For a model without a size in its name or in the catalogue."""

_SIZE = re.compile(r"(?:^|[.-])([0-9]{1,4})gb\b")
_EXAMPLE = 'Write it as "nvidia/h100-80gb:4,ascend/910b:2"'


def probe() -> ProbeResult:
    """The devices in the environment variable.

    :raises ProbeError: it can't be read, or names too many
    """
    return parse(os.environ.get(SIMULATED_DEVICES_VARIABLE, ""))


def parse(text: str) -> ProbeResult:
    """The devices in a text: device texts joined by commas, each with a model or a MIG profile.

    >>> [device.id for device in parse("nvidia/h100-80gb:2").devices]
    ['simulated-nvidia-h100-80gb-0', 'simulated-nvidia-h100-80gb-1']

    :raises ProbeError: it can't be read, or names too many
    """
    asked = f"{SIMULATED_DEVICES_VARIABLE}={shorten(text)}"
    if len(text) > MAX_TEXT:
        raise ProbeError(asked, found=f"{len(text)} characters", remedy=f"Give at most {MAX_TEXT}")
    devices: list[Device] = []
    numbers: Counter[str] = Counter()
    for part in filter(None, (part.strip() for part in text.split(","))):
        vendor, kind, model, partition, count = _read_part(asked, part)
        if len(devices) + count > MAX_DEVICES:
            found = f"{len(devices) + count} devices or more"
            raise ProbeError(asked, found=found, remedy=f"Simulate at most {MAX_DEVICES} a host")
        name = f"mig-{partition}" if partition else model
        for _ in range(count):
            number = numbers[f"{vendor}-{name}"]
            numbers[f"{vendor}-{name}"] += 1
            devices.append(
                Device(
                    id=f"simulated-{vendor}-{name}-{number}",
                    vendor=vendor,
                    kind=kind,
                    model=model,
                    partition=partition,
                    index=number,
                    memory_bytes=_memory_bytes(partition or model),
                    simulated=True,
                )
            )
    telemetry = tuple(Telemetry(device_id=d.id, memory_free_bytes=d.memory_bytes) for d in devices)
    return ProbeResult(tuple(devices), telemetry)


def _read_part(asked: str, part: str) -> tuple[str, str, str, str | None, int]:
    """Vendor, kind, model, MIG profile and count of one device text."""
    try:
        fields = parse_device(part)
    except RequestError as error:
        raise ProbeError(asked, found=f"{error.found} in {shorten(part)}", remedy=error.remedy) from error
    vendor, model, partition = fields.get("vendor"), fields.get("model"), fields.get("partition")
    if fields.get("kind") == "cpu" or "share" in fields or not (model or partition):
        found = "a share" if "share" in fields else "no model of an accelerator"
        raise ProbeError(asked, found=f"{found} in {shorten(part)}", remedy=_EXAMPLE)
    name = str(partition or model)
    if to_word(name) != name or len(name) > 100 or len(str(vendor)) > 100:
        raise ProbeError(asked, found=f"no name of a model in {shorten(part)}", remedy=_EXAMPLE)
    kind = fields.get("kind") or "gpu"
    count = fields.get("count", 1)
    assert isinstance(count, int)
    return str(vendor), str(kind), str(model or "mig"), str(partition) if partition else None, count


def _memory_bytes(name: str) -> int:
    """The size in the name (``h100-80gb``, ``1g.10gb``), or the catalogue's size of its model."""
    size = _SIZE.search(name)
    if size:
        return int(size[1]) << 30
    tokens = model_tokens(name)
    models = [model for model in MODELS if matches_model(model, tokens)]
    return MODELS[max(models, key=len)][2] if models else DEFAULT_MEMORY_BYTES
