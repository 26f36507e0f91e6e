"""A real process that keeps a file open, which stands in for a device node."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def process_that_opens(node: Path) -> Iterator[subprocess.Popen[bytes]]:
    """No lease knows it: another service started it, such as a container engine."""
    with node.open() as file:
        process = subprocess.Popen(["sleep", "600"], stdin=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
