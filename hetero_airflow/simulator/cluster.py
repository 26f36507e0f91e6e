"""A simulated cluster from a text: ``v100=12,p100=3x4`` is one worker of twelve devices and three of four."""

import re

from hetero_airflow.errors import ClusterError, RequestError, shorten
from hetero_airflow.model.device import Device
from hetero_airflow.model.devices.names import MODELS, VENDORS, parse_device
from hetero_airflow.model.worker import MAX_DEVICES, Worker

MAX_WORKERS = 20_000
_GIB = 2**30
_PART = re.compile(r"(?P<device>[^=]+)=(?:(?P<workers>[0-9]{1,6})x)?(?P<count>[0-9]{1,6})")
_EXAMPLE = 'Write it as "v100=12,p100=3x4": one worker of twelve V100 and three workers of four P100'


def parse_cluster(text: str) -> tuple[Worker, ...]:
    """The workers that a text describes, each with accelerators of one model and a CPU with plenty of cores.

    >>> [(w.id, len(w.devices)) for w in parse_cluster("v100=2,amd/mi300x=2x8")]
    [('v100-0', 3), ('mi300x-0', 9), ('mi300x-1', 9)]

    :raises ClusterError: the text can't be read, or describes too many workers or devices
    """
    workers: list[Worker] = []
    models: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _PART.fullmatch(part)
        if match is None:
            raise _cluster_error(text, shorten(part))
        vendor, model = _read_model(text, match["device"].strip())
        hosts, count = int(match["workers"] or 1), int(match["count"])
        if not (0 < count < MAX_DEVICES and 0 < hosts <= MAX_WORKERS - len(workers)):
            remedy = f"Give 1 to {MAX_DEVICES - 1} devices a worker, and at most {MAX_WORKERS} workers"
            raise _cluster_error(text, f"{hosts} workers of {count} in {shorten(part)}", remedy)
        if model in models:
            raise _cluster_error(text, f"{model} twice", "Name each model once")
        models.add(model)
        workers += [simulated_worker(f"{model}-{number}", {f"{vendor}/{model}": count}) for number in range(hosts)]
    if not workers:
        raise _cluster_error(text, "no device")
    return tuple(workers)


def simulated_worker(
    id: str, accelerators: dict[str, int], cores: int = 4096, host_memory_bytes: int = 2**50, **labels: str
) -> Worker:
    """A worker with this number of simulated devices of each class (``nvidia/v100``), and a CPU."""
    cpu = Device(
        id="cpu", vendor="generic", kind="cpu", model="x86-64", index=0, memory_bytes=host_memory_bytes,
        cores=tuple(range(cores)), simulated=True,
    )  # fmt: skip
    devices = [cpu]
    for device_class, count in accelerators.items():
        vendor, model = device_class.split("/", 1)
        _, kind, memory_bytes = MODELS.get(model, (vendor, VENDORS.get(vendor, "gpu"), 16 * _GIB))
        first = len(devices) - 1
        devices += (
            Device(
                id=f"{model}-{number}", vendor=vendor, kind=kind, model=model, index=first + number,
                memory_bytes=memory_bytes, simulated=True,
            )
            for number in range(count)
        )  # fmt: skip
    return Worker(id=id, host=id, engine="simulated", devices=tuple(devices), labels=labels)


def _read_model(text: str, word: str) -> tuple[str, str]:
    try:
        fields = parse_device(word if "/" in word or word in MODELS else f"nvidia/{word}")
    except RequestError as error:
        raise _cluster_error(text, error.found) from error
    vendor, model = fields.get("vendor"), fields.get("model")
    if vendor is None or model is None or "count" in fields or "share" in fields:
        raise _cluster_error(text, f"no model in {shorten(word)}")
    return str(vendor), str(model)


def _cluster_error(text: str, found: str, remedy: str = _EXAMPLE) -> ClusterError:
    return ClusterError(f"cluster {shorten(text)}", found=found, remedy=remedy)
