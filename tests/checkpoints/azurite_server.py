"""Azurite, Microsoft's emulator of Azure Blob Storage, as npm installs it."""

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's account, which its documentation names; no secret."""

_LISTENS = "successfully listens on "


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[str]:
    """Install and start it; the address of its account."""
    shutil.copytree(Path(__file__).parent / "azurite", folder)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the node of the extra `dev`
    environment = {**os.environ, "PATH": programs, "TMPDIR": str(folder), "HOME": str(folder)}
    command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True)
    if done.returncode and "network" in done.stdout:
        pytest.skip("the registry of npm can't be reached, so Azurite was not installed")
    assert done.returncode == 0, done.stdout
    options = ["--inMemoryPersistence", "--blobPort", "0", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    server = subprocess.Popen(
        ["node", "node_modules/.bin/azurite-blob", *options],
        cwd=folder,
        env=environment,
        stdout=-1,
        text=True,
        start_new_session=True,
    )
    assert server.stdout
    try:
        line = next(line for line in server.stdout if _LISTENS in line)
        yield f"{line.partition(_LISTENS)[2].strip()}/{ACCOUNT}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # `node` starts another process; SIGTERM would wait for connections
        server.communicate()


def make_container(address: str, name: str) -> None:
    """Make an empty container; obstore can't."""
    date = formatdate(usegmt=True)
    lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", "x-ms-version:2021-12-02", f"/{ACCOUNT}/{ACCOUNT}/{name}"]
    text = "\n".join([*lines, "restype:container"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": "2021-12-02",
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        "Content-Length": "0",
    }
    request = urllib.request.Request(f"{address}/{name}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201
