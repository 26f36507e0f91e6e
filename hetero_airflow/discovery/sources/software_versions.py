"""Versions of the software on this host, from package metadata and version files. Nothing is imported.

Files, with real contents::

    /opt/rocm/.info/version                                                     6.4.1-83
    /usr/local/Ascend/ascend-toolkit/latest/*-linux/ascend_toolkit_install.info version=8.3.RC2

CUDA's version comes from the driver, so the NVIDIA probe reports it.
"""

import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from hetero_airflow.discovery.sources.tools_and_files import read_text
from hetero_airflow.discovery.sources.values import to_version

PACKAGES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("torch", "torch-npu", "torch-xla", "torchvision")},
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tensorflow-gpu"),
    "libtpu": ("libtpu", "libtpu-nightly"),
    "paddlepaddle": ("paddlepaddle-gpu", "paddlepaddle"),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime", "onnxruntime-rocm"),
    **{name: (name,) for name in ("jax", "jaxlib", "mindspore", "transformers", "vllm", "numpy")},
}
"""Name in a request → distributions that provide it; the first installed one counts."""


def runtime_versions(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Software name → PEP 440 version, of the installed software; ``torch 2.13.0+cpu`` is ``2.13.0``."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name, distributions in PACKAGES.items():
        versions[name] = next(filter(None, map(_package_version, distributions)), None)
    rocm = environment.get("ROCM_PATH") or "/opt/rocm"
    versions["rocm"] = to_version(read_text(_under(root, rocm) / ".info/version"))
    versions["cann"] = next(filter(None, map(_cann_version, _cann_files(root, environment))), None)
    return {name: text for name, text in versions.items() if text}


def _package_version(distribution: str) -> str | None:
    try:
        found = metadata(distribution)
    except PackageNotFoundError:
        return None
    return to_version(found["Version"]) if "Version" in found else None


def _cann_files(root: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    homes = [environment.get("ASCEND_HOME_PATH"), environment.get("ASCEND_TOOLKIT_HOME")]
    homes += ["/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann"]
    for home in filter(None, homes):
        folder = _under(root, home)
        yield folder / "ascend_toolkit_install.info"
        yield from sorted(folder.glob("*-linux/ascend_toolkit_install.info"))


def _cann_version(file: Path) -> str | None:
    for line in (read_text(file) or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "version":
            return to_version(value)
    return None


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
