"""Runs a vendor's tool, reads small files, and lists the PCI devices of this host."""

import glob
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from hetero_airflow.discovery.sources.values import to_pci
from hetero_airflow.errors import ProbeError, shorten

MAX_OUTPUT_BYTES = 8 << 20
"""Limit of a tool's output; amd-smi writes 15 kB a GPU."""

TOOL_TIMEOUT_S = 60.0
"""A last limit: discovery ends the whole probe much sooner."""


def find_tool(name: str, *folders: str) -> str | None:
    """The absolute path of a tool on PATH, or else in one of its vendor's usual folders."""
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders) or os.devnull)
    return os.path.abspath(path) if path else None


def missing_tool_problem(nodes: str, tool: str, remedy: str) -> tuple[str, ...]:
    """One line if a driver's device nodes (a path with wildcards) exist but its tool does not; else none.

    >>> missing_tool_problem("/dev/nowhere*", "acme-smi", "install it")
    ()
    """
    node = next(glob.iglob(nodes), None)
    return (f"{node} exists, but {tool} does not, so its devices can't be read; {remedy}.",) if node else ()


def run_tool(path: str, *arguments: str, timeout_s: float = TOOL_TIMEOUT_S) -> str:
    """The tool's standard output. Blocks; uses no shell.

    :raises ProbeError: it can't be started, hangs, fails, or writes too much
    """
    asked = " ".join((os.path.basename(path), *arguments))
    deadline = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(  # an absolute path, no shell, constant arguments
            [path, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise ProbeError(asked, found=f"{path} that can't be started: {error}", remedy="Install it again") from error
    try:
        output = _read_pipe(process, deadline)
        if output is not None and len(output) <= MAX_OUTPUT_BYTES:
            process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        output = None
    finally:
        process.kill()
        assert process.stdout is not None
        process.stdout.close()
        process.wait()
    if output is None:
        raise ProbeError(asked, found=f"no end after {timeout_s:g} s", remedy="Look at the driver's kernel log")
    if len(output) > MAX_OUTPUT_BYTES:
        raise ProbeError(asked, found=f"more than {MAX_OUTPUT_BYTES} bytes", remedy="Run it by hand")
    text = output.decode(errors="replace")
    if process.returncode != 0:
        end = shorten(text.strip()[-200:], limit=160)
        raise ProbeError(asked, found=f"exit code {process.returncode} and {end}", remedy="Run it by hand")
    return text


def _read_pipe(process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """The process's output, up to a little over the limit; None after the deadline."""
    assert process.stdout is not None
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) <= MAX_OUTPUT_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            output += data
    return bytes(output)


def read_text(path: Path, limit: int = 4096) -> str | None:
    """The first `limit` bytes of a file, stripped; None if it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode(errors="replace").strip()
    except OSError:
        return None


def read_pci(root: Path, vendors: frozenset[str]) -> Iterator[dict[str, str | None]]:
    """The PCI devices of some vendors (ids as ``0x1ae0``), ordered by address, each with the values of its /sys files.

    ``{"pci": "0000:00:04.0", "vendor": "0x1ae0", "device": "0x0063", "subsystem_device": "0x0000",
    "class": "0x120000", "numa_node": "0", "driver": "vfio-pci", "iommu_group": "0"}``
    """
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = read_text(folder / "vendor")
        if vendor in vendors and to_pci(folder.name):
            yield {
                "pci": folder.name,
                "vendor": vendor,
                **{name: read_text(folder / name) for name in ("device", "subsystem_device", "class", "numa_node")},
                **{name: _read_link(folder / name) for name in ("driver", "iommu_group")},
            }


def read_numa_node(pci: str | None, root: Path = Path("/")) -> int | None:
    """The NUMA node of a PCI device; None if the kernel names none."""
    return to_numa_node(read_text(root / f"sys/bus/pci/devices/{pci}/numa_node")) if to_pci(pci) else None


def to_numa_node(text: str | None) -> int | None:
    """A NUMA node from the kernel's text, which is ``-1`` for none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 5 else None


def _read_link(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None
