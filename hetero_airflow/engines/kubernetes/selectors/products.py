"""The product names in the labels of feature discovery, and which of them a requested model means.

Node affinity compares whole texts, so the names must be known: they are those of `names.PRODUCTS`. Google's are of the
label ``cloud.google.com/gke-tpu-accelerator`` in "Plan TPUs in GKE".
"""

import re
from collections.abc import Mapping

from hetero_airflow.errors import RequestError
from hetero_airflow.model.devices.names import PRODUCTS, matches_model, model_tokens

NVIDIA, AMD, INTEL, ASCEND = (tuple(PRODUCTS[vendor]) for vendor in ("nvidia", "amd", "intel", "ascend"))

GOOGLE: Mapping[str, str] = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "v7x": "tpu7x",
}

TPU_TOPOLOGIES: Mapping[str, Mapping[int, str]] = {
    "v4": {4: "2x2x1"},
    "v5e": {1: "1x1", 4: "2x2", 8: "2x4"},
    "v5p": {4: "2x2x1"},
    "v6e": {1: "1x1", 4: "2x2", 8: "2x4"},
    "v7x": {1: "1x1x1", 4: "2x2x1"},
}
"""Model → number of chips on one host → topology of a slice on that host."""

_SIZE = re.compile(r"(\d{1,4})gb")


def products_of(model: str, products: tuple[str, ...]) -> tuple[str, ...]:
    """The known names of a model's products.

    >>> products_of("a100-80gb", NVIDIA), products_of("mi300x", AMD)
    (('NVIDIA-A100-80GB-PCIe', 'NVIDIA-A100-SXM4-80GB'), ('AMD_Instinct_MI300X', 'AMD_Instinct_MI300X_OAM'))
    """
    return tuple(name for name in products if matches_model(model, model_tokens(name.lower().replace("_", "-"))))


def split_size(model: str) -> tuple[str, int | None]:
    """The model without the memory size in its name, and that size in GiB. Product names often leave the size out.

    >>> split_size("h100-80gb"), split_size("t4")
    (('h100', 80), ('t4', None))
    """
    model_words = [word for word in model.split("-") if word]
    sizes = [int(match[1]) for word in model_words if (match := _SIZE.fullmatch(word))]
    name = "-".join(word for word in model_words if not _SIZE.fullmatch(word))
    return (name, sizes[0]) if len(sizes) == 1 and name else (model, None)


def is_unknown_variant(model: str, vendor: str) -> bool:
    """Whether products of the model's first word are known, but none with its other words.

    Devices of the model exist nowhere, so a claim for them would wait for ever. A claim may ask for a model whose first
    word is unknown, or is no number of a model (``rtx``): the driver may name a new one.

    >>> is_unknown_variant("h100-sxm9", "nvidia"), is_unknown_variant("h100-80gb", "nvidia")
    (True, False)
    >>> is_unknown_variant("x1000", "nvidia"), is_unknown_variant("rtx-9090", "nvidia")
    (False, False)
    """
    products = {"nvidia": NVIDIA, "amd": AMD}.get(vendor, ())
    model_name, _ = split_size(model)
    first_word = model.split("-")[0]
    is_known = any(map(str.isdigit, first_word)) and bool(products_of(first_word, products))
    return is_known and not products_of(model_name, products)


def unknown_model(vendor: str, model: str, label: str) -> RequestError:
    """The error for a model without known product names."""
    return RequestError(
        "device",
        f"{vendor}/{model}",
        found=f"no known value of the node label {label} for it",
        remedy=f'Ask for "{vendor}" and name the value: labels={{"{label}": "..."}}; '
        "`kubectl get nodes --show-labels` shows it",
    )
