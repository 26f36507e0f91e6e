"""The devices that a node's device plugins advertise as extended resources, read with the node's labels. Pure.

A resource is a name and a number. Whether one unit of it is a whole device, a part of one, or a share of one is only
known from the name and from labels, so what these don't tell is not leased:

- A number above the count of the physical devices is sharing. The physical devices are shown, none can be had whole.
- A resource of an accelerator's maker, or with an accelerator's word, that has no row here is a problem line.

Sources: NVIDIA/k8s-device-plugin (internal/lm/resource.go: product, count, replicas and sharing-strategy are written
together; README: ``renameByDefault`` makes ``.shared``); Google's "Share GPUs in GKE" and "Run multi-instance GPUs";
Project-HAMi/HAMi (charts/hami/values.yaml for the names of resources; the annotations ``hami.io/node-…-register``);
ROCm/k8s-device-plugin (docs/user-guide/configuration.md, cmd/k8s-node-labeller/main.go);
intel/intel-device-plugins-for-kubernetes (cmd/gpu_plugin/README.md, labels.md); Huawei's MindCluster guide for
``Ascend310P-2c``; Amazon's "Neuron device plugin"; Habana's "Intel Gaudi device plugin".
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from hetero_airflow.engines.kubernetes.resources import DOMAINS, RESOURCES, accelerator_word, maker_of
from hetero_airflow.engines.kubernetes.selectors import node_conditions as labels_of
from hetero_airflow.engines.kubernetes.selectors.products import GOOGLE
from hetero_airflow.model.devices.names import AMD_MODES, KINDS, MODELS, VENDORS, amd_chip, kind_of
from hetero_airflow.units import MAX_BYTES

_MIB, _GIB = 2**20, 2**30
_MAX_CHIPS, _MAX_PARTS = 8, 8
"""AMD's Instinct chips that can be partitioned: a machine has at most 8 (OAM universal baseboard), each in 8 parts."""

_MAX_COUNT = 256
"""A label with a greater number counts no devices of one machine; it may be a size in MiB."""


class ResourceName(NamedTuple):
    """How a resource is called, and what its devices are."""

    name: re.Pattern[str]
    """With the groups ``model`` and ``partition`` where the name tells them, and ``shared`` if it counts shares."""
    vendor: str
    kind: str


_ROWS = tuple(
    ResourceName(re.compile(name), vendor, kind)
    for name, vendor, kind in (
        (r"nvidia\.com/gpu(\.shared)?", "nvidia", "gpu"),
        (r"nvidia\.com/mig-(?P<partition>(\dc\.)?\dg\.\d+gb(\.(me|gfx|all))*)(\.shared)?", "nvidia", "gpu"),
        (r"amd\.com/gpu", "amd", "gpu"),
        (r"amd\.com/(?P<partition>[sdtqc]px_nps[1248])", "amd", "gpu"),
        (r"gpu\.intel\.com/(i915|xe)", "intel", "gpu"),
        (r"huawei\.com/Ascend(910|(?P<model>310P?))", "ascend", "npu"),
        (r"huawei\.com/Ascend(910|(?P<model>310P?))-(?P<partition>\d+c(\.\d+(cpu|g)|\.n?dvpp)*)", "ascend", "npu"),
        (r"huawei\.com/Ascend(?P<model>(910|310)[A-Z0-9-]+)(?P<shared>)", "ascend", "npu"),  # HAMi's: it counts shares
        (r"google\.com/tpu", "google", "tpu"),
        (r"habana\.ai/gaudi", "habana", "hpu"),
        (r"aws\.amazon\.com/neuron", "aws", "neuron"),
        (r"furiosa\.ai/(?P<model>rngd|warboy)(-(?P<partition>\d+core\.\d+gb))?", "furiosa", "npu"),
        (r"rebellions\.ai/(?P<model>ATOM)", "rebellions", "npu"),
    )
)

_PARTS = tuple(
    (re.compile(name), vendor)
    for name, vendor in (
        (r"nvidia\.com/gpu(mem.*|cores|-\d+gb)", "nvidia"),
        (r"(volcano\.sh/vgpu|aliyun\.com/gpu|tencent\.com/vcuda|koordinator\.sh/gpu).*", "nvidia"),
        (r"huawei\.com/(Ascend.+-(memory|core)|npu-core)", "ascend"),
        (r"amd\.com/gpu(mem.*|cores)", "amd"),
        (r"aws\.amazon\.com/neuron(core|device)", "aws"),
    )
)
"""Resources that count memory, cores or shares of a vendor's devices (HAMi, Volcano, nos, gpushare, GPU manager,
Koordinator, Neuron). Neuron's older ``neurondevice`` counts the same chips as ``neuron``."""

_OTHER_NAMES = {
    "amd.com/gpu": re.compile(r"amd\.com/[sdtqc]px_nps[1248]"),
    "huawei.com/Ascend910": re.compile(r"huawei\.com/Ascend910[A-Z0-9-]+"),
}
"""Resource → names of the same devices in another configuration of the plugin, or in another plugin."""

_BESIDE = re.compile(r"gpu\.intel\.com/((i915|xe)_monitoring|millicores|memory\.max|tiles)|nvidia\.com/priority")
"""Resources that are no devices: access for monitoring, figures of Intel's labels, HAMi's priority."""

_MODEL_LABELS = {
    "nvidia": (labels_of.PRODUCT, labels_of.GKE_GPU, labels_of.KARPENTER_GPU),
    "amd": (labels_of.AMD_PRODUCT,), "ascend": (labels_of.CHIP,),
    "google": (labels_of.ACCELERATOR,), "intel": (labels_of.INTEL_PRODUCT,), "habana": ("habana.ai/hpu.product",),
    "aws": ("node.kubernetes.io/instance-type",),
}  # fmt: skip
"""Vendor → labels that name the model, the best first. Amazon's chips are called like their machines: trn1, inf2."""

_PROFILE = re.compile(r"([1-7])g\.\d{1,3}gb(\.me)?")
_MODE = re.compile(r"([sdtqc]px)(?:[_-](nps[1248]))?")
_SHARE_WORDS = "it can't be had as a whole"


@dataclass(frozen=True, slots=True)
class Advertised:
    """Devices of one resource."""

    resource: str
    vendor: str
    kind: str
    model: str
    count: int
    healthy: int
    """Devices that the plugin calls healthy; the first ones."""
    problem: str | None = None
    """Why none of them can be leased."""
    partition: str | None = None
    memory_bytes: int | None = None
    """Of each device; None if the node does not report it."""
    is_model_known: bool = True
    """Whether a label, the resource's name or the cluster's owner names the model."""


class Node(NamedTuple):
    """What a node says about its devices."""

    labels: Mapping[str, str]
    annotations: Iterable[str]
    """Names of its annotations."""
    capacity: Mapping[str, Decimal]
    allocatable: Mapping[str, Decimal]

    def units(self, resource: str) -> int:
        """How many units of a resource there are, healthy or not."""
        return max(int(self.capacity.get(resource, 0)), int(self.allocatable.get(resource, 0)))

    def resources(self) -> list[str]:
        """The names of the resources that there is at least one unit of."""
        return [name for name in sorted({*self.capacity, *self.allocatable}) if self.units(name) > 0]


class _Share(NamedTuple):
    """Whether the units of a resource are whole devices."""

    problem: str | None = None
    """Why they are not, or why that is unknown."""
    devices: int = 0
    """The physical devices; 0 if each unit stands for one."""


def read_advertised(node: Node, configured: Mapping[str, str]) -> tuple[list[Advertised], list[str]]:
    """The devices of a node, ordered by resource, and a problem line for each resource that is not understood.

    :param configured: device part of a request → resource, from ``[hetero] kubernetes_resources``
    """
    texts = {name: text for text, name in configured.items()}
    offers = [_read(name, texts, node) for name in node.resources()]
    known = [offer for offer in offers if offer is not None]
    vendors = {offer.vendor for offer in known}
    lines = [line for name in node.resources() if name not in texts and (line := _line(name, vendors, node))]
    return known, [*lines, *(line for offer in known if (line := _model_line(offer)))]


def _read(name: str, texts: Mapping[str, str], node: Node) -> Advertised | None:
    text = texts.get(name)
    row, match = next(((row, match) for row in _ROWS if (match := row.name.fullmatch(name))), (None, None))
    if row is None and text is None:
        return None
    vendor, kind = vendor_kind(text, name) if text is not None else (row.vendor, row.kind) if row else ("", "")
    groups = match.groupdict() if match and row and row.vendor == vendor else {}
    configured_part = text.removeprefix("mig-") if text is not None and text.startswith("mig-") else None
    partition, share = groups.get("partition") or configured_part, _Share()
    model = _model(vendor, _text_model(text) or groups.get("model") or "", node.labels)
    memory = _memory(vendor, partition, node.labels)
    if vendor == "amd":
        partition, memory, share = _amd(name, partition, model, memory, node)
    elif name == "nvidia.com/gpu" and labels_of.GKE_PARTITION in node.labels:
        partition, share = _gke_partition(name, node)
        memory = None
    elif vendor == "nvidia":
        share = _nvidia_share(name, partition, texts, node)
    elif row is not None and row.vendor == vendor:
        share = _share(name, vendor, node, counts_shares="shared" in groups and text is None)
    healthy = int(node.allocatable.get(name, 0))
    count = share.devices or node.units(name)
    problem = share.problem or _twice_problem(name, node) or _parts_problem(vendor, node)
    nameless = "gaudi" if vendor == "habana" else kind if text is None else vendor
    return Advertised(name, vendor, kind, device_word(model or nameless), count, min(healthy, count), problem,
                      partition and device_word(partition), memory, bool(model) or text is not None)  # fmt: skip


def vendor_kind(text: str, resource: str) -> tuple[str, str]:
    """Vendor and kind of a device text of ``[hetero] kubernetes_resources``.

    >>> vendor_kind("fpga", "acme.com/fpga"), vendor_kind("habana/gaudi2", "habana.ai/gaudi")
    (('generic', 'fpga'), ('habana', 'hpu'))
    """
    if text.startswith("mig-"):
        return "nvidia", "gpu"
    first, _, second = text.partition("/")
    if second:
        return first, second if second in KINDS else kind_of(first, second) or second
    if first in MODELS:
        return MODELS[first][:2]
    if first in VENDORS:
        return first, VENDORS[first]
    return DOMAINS.get(resource.partition("/")[0], "generic"), first


def _text_model(text: str | None) -> str:
    """The model that a configured device text names; empty if it names a kind or a vendor."""
    word = (text or "").rpartition("/")[2]
    return "" if word in KINDS or word in VENDORS or "/" not in (text or "") else word


# Sharing ------------------------------------------------------------------------------------------------------------


def _share(name: str, vendor: str, node: Node, *, counts_shares: bool) -> _Share:
    if counts_shares:
        return _Share(
            f"HAMi's plugin counts shares of NPUs as {name}: {_SHARE_WORDS}; if yours counts whole ones, "
            "name it in [hetero] kubernetes_resources"
        )
    if vendor == "intel":
        names = ("gpu.intel.com/i915", "gpu.intel.com/xe")
        return _above(name, sum(map(node.units, names)), *_intel_counts(node.labels))
    if vendor == "google":
        return _above(name, node.units(name), *_read_counts(node.labels, [labels_of.GKE_COUNT]))
    return _Share()


def _nvidia_share(name: str, partition: str | None, texts: Mapping[str, str], node: Node) -> _Share:
    """For whole GPUs and MIG instances, whose labels are called alike: ``nvidia.com/gpu.count``.

    The GPUs are counted over all names that the owner gives them.
    """
    labels, units, is_marked, is_whole = node.labels, node.units(name), name.endswith(".shared"), partition is None
    prefix = RESOURCES["nvidia/gpu"] if is_whole else name.removesuffix(".shared")
    product = labels.get(f"{prefix}.product", "").lower()
    keys = [f"{prefix}.count", *((labels_of.GKE_COUNT, labels_of.KARPENTER_COUNT) if is_whole else ())]
    count, unreadable = _read_counts(labels, keys)
    if is_whole and (labels_of.INSTANCES in labels or "-mig-" in product):
        words = 'a MIG instance that the plugin counts as a GPU: set its MIG strategy to "mixed"'
        return _Share(words, min(count or units, units))
    replicas = max(number(labels.get(f"{prefix}.replicas")), number(labels.get(labels_of.GKE_CLIENTS)), 1)
    problem = _strategy_problem(prefix, labels, is_shared=is_marked or replicas > 1 or product.endswith("-shared"))
    if problem is not None:
        return _Share(problem, count or max(units // replicas, 1))
    if not is_marked and node.units(f"{prefix}.shared"):
        return _Share(f"the node offers the same devices as {prefix}.shared: {_SHARE_WORDS}")
    if count is None and (f"{prefix}.sharing-strategy" in labels or (labels.get("gpu") == "on" and name not in texts)):
        unreadable = unreadable or f"{prefix}.count"  # feature discovery writes both; HAMi runs where gpu=on
    named = {key for key, text in texts.items() if vendor_kind(text, key)[0] == "nvidia" and text[:4] != "mig-"}
    return _above(name, sum(map(node.units, {name, prefix, *named} if is_whole else {name})), count, unreadable)


def _strategy_problem(prefix: str, labels: Mapping[str, str], *, is_shared: bool) -> str | None:
    strategies = [labels.get(f"{prefix}.sharing-strategy", ""), labels.get(labels_of.GKE_SHARING, "")]
    strategy = next((text for text in strategies if text and text != "none"), None)
    if strategy is not None:
        return f"shared by {strategy}: {_SHARE_WORDS}"
    return f"several pods share it: {_SHARE_WORDS}" if is_shared else None


def _above(name: str, units: int, count: int | None, unreadable: str | None) -> _Share:
    """A number of units above the count of devices is sharing."""
    if count is not None and units > count:
        return _Share(
            f"the node offers {units} of {name}, its labels count {count}: several pods share one, so {_SHARE_WORDS}",
            count,
        )
    if unreadable is not None:
        return _Share(
            f"the node's label {unreadable} is no count of devices or missing, so whether the {units} of {name} are "
            "shared is unknown: check feature discovery on the node"
        )
    return _Share()


def _read_counts(labels: Mapping[str, str], keys: Iterable[str]) -> tuple[int | None, str | None]:
    """The smallest count in these labels, and the label that is there but is no count."""
    counts = {key: number(labels[key]) for key in keys if key in labels}
    valid = {key: count for key, count in counts.items() if 0 < count <= _MAX_COUNT}
    return min(valid.values(), default=None), next((key for key in counts if key not in valid), None)


def _intel_counts(labels: Mapping[str, str]) -> tuple[int | None, str | None]:
    if labels_of.INTEL_COUNT in labels:
        return _read_counts(labels, [labels_of.INTEL_COUNT])
    ids = [key for key in labels if key.startswith("gpu.intel.com/device-id.") and key.endswith(".count")]
    _, unreadable = _read_counts(labels, ids)
    return (sum(number(labels[key]) for key in ids) or None) if unreadable is None else None, unreadable


def _parts_problem(vendor: str, node: Node) -> str | None:
    """Why devices of a vendor may be shared: the node also offers parts of them, or HAMi says that it divides them."""
    parts = next((name for name in node.resources() if _part_vendor(name) == vendor and vendor != "aws"), None)
    if parts is not None:
        return f"the node also offers parts of these devices, as {parts}: {_SHARE_WORDS}"
    word = {"nvidia": ("nvidia", "vgpu")}.get(vendor, (vendor,))
    for name in node.annotations:
        if labels_of.REGISTER.search(name) and any(text in name.lower() for text in word):
            return f"HAMi or Volcano shares it (annotation {name[:80]}): {_SHARE_WORDS}"
    return None


def _twice_problem(name: str, node: Node) -> str | None:
    """That the node offers the same devices under another name too."""
    pattern = _OTHER_NAMES.get(name)
    others = [other for other in node.resources() if pattern is not None and pattern.fullmatch(other)]
    return f"the node offers the same devices as {others[0]}: it can't be had under both names" if others else None


def _part_vendor(name: str) -> str | None:
    return next((vendor for pattern, vendor in _PARTS if pattern.fullmatch(name)), None)


def _gke_partition(name: str, node: Node) -> tuple[str | None, _Share]:
    """The MIG profile of GKE's label, which counts instances as GPUs."""
    size, units = node.labels[labels_of.GKE_PARTITION].lower(), node.units(name)
    profile = _PROFILE.fullmatch(size)
    if profile is None:
        return None, _Share(
            f"a MIG instance whose size GKE's label {labels_of.GKE_PARTITION} does not tell: use a profile such as "
            '"1g.5gb"'
        )
    is_shared = number(node.labels.get(labels_of.GKE_CLIENTS)) > 1
    problem = _strategy_problem("nvidia.com/gpu", node.labels, is_shared=is_shared)
    if problem is not None:
        return size, _Share(problem)
    count, unreadable = _read_counts(node.labels, [labels_of.GKE_COUNT])
    instances = None if count is None else count * (7 // int(profile[1]))  # a GPU has 7 compute slices
    return size, _above(name, units, instances, unreadable)


# AMD ----------------------------------------------------------------------------------------------------------------


def _amd(
    name: str, mode: str | None, model: str, memory: int | None, node: Node
) -> tuple[str | None, int | None, _Share]:
    """Partition, memory and sharing. The mode is in the resource's name, or in a label."""
    chip = amd_chip(model)
    modes = {mode} if mode else _amd_modes(node.labels)
    match = _MODE.fullmatch(next(iter(modes))) if len(modes) == 1 else None
    if modes and match is None:
        words = ", ".join(sorted(modes))[:80]
        return None, None, _Share(f"the GPU's partition mode is not understood ({words}): update hetero-airflow")
    is_whole = match is None or match[1] == "spx"
    parts = 1 if match is None else AMD_MODES.get(match[1], chip[0] if chip else _MAX_PARTS)
    if _may_be_parts(node.units(name) / parts, memory if is_whole else None, chip, is_model_known=bool(model)):
        problem = (
            f"the {node.units(name)} of {name} may be partitions or shares: no label of the node tells a mode that "
            "fits their number and memory; let AMD's node labeller write compute-memory-partition"
        )
        return None, None, _Share(problem)
    if match is not None and not is_whole:
        return "-".join(part for part in match.groups() if part), chip[1] * _GIB // parts if chip else None, _Share()
    return None, memory, _Share() if mode else _above(name, node.units(name), *_amd_counts(node.labels))


def _may_be_parts(chips: float, memory: int | None, chip: tuple[int, int] | None, *, is_model_known: bool) -> bool:
    """Whether there are more GPUs than a machine holds, or each has less memory than its chip."""
    if chip is None:
        return not is_model_known and chips > 2 * _MAX_CHIPS  # the MI250 has two GPUs each
    return chips > _MAX_CHIPS or (memory is not None and memory < chip[1] * _GIB * 3 // 4)


def _amd_modes(labels: Mapping[str, str]) -> set[str]:
    """The partition modes in labels such as ``amd.com/gpu.compute-memory-partition``."""
    return {
        text.lower().replace("-", "_")
        for name, text in labels.items()
        if re.fullmatch(r"(beta\.)?amd\.com/(gpu\.)?compute(-memory)?-partition", name)
    }


def _amd_counts(labels: Mapping[str, str]) -> tuple[int | None, str | None]:
    """The number of GPUs: the node labeller counts them by their device ids and by their names."""
    for kind in ("device-id", "product-name"):
        for domain in ("beta.amd.com", "amd.com"):
            keys = [key for key in labels if key.startswith(f"{domain}/gpu.{kind}.")]
            if keys:
                _, unreadable = _read_counts(labels, keys)
                return (sum(number(labels[key]) for key in keys) or None, unreadable)
    return None, None


# Models and memory --------------------------------------------------------------------------------------------------


def _model(vendor: str, named: str, labels: Mapping[str, str]) -> str:
    """The model that the node's labels name, or else the resource; empty if neither does."""
    label = next((labels[key] for key in _MODEL_LABELS.get(vendor, ()) if labels.get(key)), "")
    if vendor == "google":
        label = next((model for model, name in GOOGLE.items() if name == label), label)
    if vendor == "aws":
        family = re.match(r"(?:trn|inf)\d+", label)
        label = family[0] if family else ""
    if not label:
        return device_word(named) if named else ""
    if label == "nvidia-tesla-a100":
        return "a100-40gb"  # GKE's name; the one with 80 GB is nvidia-a100-80gb
    return model_word(device_word(label).removesuffix("-shared").split("-mig-")[0], vendor)


def _model_line(offer: Advertised) -> str | None:
    """That no label names the model, where that decides which requests match."""
    if offer.is_model_known or offer.problem or offer.partition:
        return None
    label = _MODEL_LABELS[offer.vendor][0]
    return (
        f"{offer.vendor}: the node has no label that names the model of its {offer.count} of {offer.resource}, so "
        f"requests that name a model don't match them; let feature discovery write the label {label}"
    )[:500]


def _memory(vendor: str, partition: str | None, labels: Mapping[str, str]) -> int | None:
    """Bytes of each device; None if the node does not report it."""
    size = 0
    if vendor == "nvidia":
        size = number(labels.get(f"nvidia.com/mig-{partition}.memory" if partition else labels_of.MEMORY)) * _MIB
    elif vendor == "amd":
        size = number(labels.get(labels_of.AMD_MEMORY, "").removesuffix("G")) * _GIB
    return min(size, MAX_BYTES) or None


# Resources that are not understood ----------------------------------------------------------------------------------


def _line(name: str, vendors: set[str], node: Node) -> str | None:
    """The problem line for a resource that gives no device; None if it is no accelerator, or a device shows it."""
    if _BESIDE.fullmatch(name) or any(row.name.fullmatch(name) for row in _ROWS):
        return None
    part_of, maker = _part_vendor(name), maker_of(name)
    if part_of in vendors or (part_of is None and maker is None):
        return None
    offered = f"{part_of or maker}: the node offers {node.units(name)} of {name}, which"
    if part_of:
        return f"{offered} may count parts of devices, or the same ones again: only whole devices are leased"[:500]
    word = accelerator_word(name) or "accelerator"
    example = word if word in KINDS else VENDORS.get(maker or "", word)
    return (
        f"{offered} is not recognised, so they are not leased; if each is a whole device, name it in [hetero] "
        f'kubernetes_resources, as in {{"{maker}/{example}": "{name}"}}'
    )[:500]


def number(text: str | None) -> int:
    """The whole number in a label; 0 if it is none."""
    return min(int(text), 2**30) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


def device_word(text: str) -> str:
    """The text as a vendor, kind or model: lower case, with dashes between its words.

    >>> device_word("NVIDIA A100-SXM4-80GB")
    'nvidia-a100-sxm4-80gb'
    """
    word = "".join(c if c.isalnum() or c in ".+-" else "-" for c in text.lower() if c.isascii())
    return word.strip("-.+")[:128] or "unknown"


def model_word(text: str, vendor: str) -> str:
    """The text as a model, without the vendor's name before it.

    >>> model_word("NVIDIA (R) A100", "nvidia"), model_word("NVIDIA", "nvidia")
    ('r--a100', 'nvidia')
    """
    return device_word(text).removeprefix(f"{vendor}-").strip("-.+") or vendor
