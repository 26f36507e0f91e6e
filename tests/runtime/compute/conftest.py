"""Ranks with Gloo, each a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from hetero_airflow.runtime.compute.compiled_code import CACHE_VARIABLE, _own_folder
from tests.waiting import eventually

PRELUDE = """
import json, torch

torch.set_num_threads(1)

def say(value):
    print(json.dumps(value))
"""


@pytest.fixture
def forget_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Lets this process compile into a new folder, as a new process does."""
    monkeypatch.setenv(CACHE_VARIABLE, "")

    def forgotten() -> None:
        del os.environ[CACHE_VARIABLE]
        _own_folder.cache_clear()

    yield forgotten
    _own_folder.cache_clear()


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """Runs a script in several ranks; what each of them said.

    :raises AssertionError: a rank failed; the text is what it wrote
    """

    def ran(
        script: str, environment: Mapping[str, str], count: int = 2, each: Sequence[Mapping[str, str]] = ()
    ) -> list[Any]:
        meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        common = {**os.environ, **environment, **where}
        ranks, logs = [], [tmp_path / f"rank{rank}.log" for rank in range(count)]
        for rank, log in enumerate(logs):
            own = {**common, "RANK": str(rank), "WORLD_SIZE": str(count), **(each[rank] if each else {})}
            with log.open("w") as file:
                command = [sys.executable, "-c", PRELUDE + script]
                ranks.append(subprocess.Popen(command, env=own, stdout=file, stderr=subprocess.STDOUT))
        try:
            eventually(lambda: any(rank.poll() for rank in ranks) or all(rank.poll() == 0 for rank in ranks))
        finally:
            for rank in ranks:
                rank.kill()  # the others wait for one that has failed
                rank.wait()
        fine = (0, -signal.SIGKILL)
        failed = [log.read_text() for rank, log in zip(ranks, logs, strict=True) if rank.returncode not in fine]
        assert not failed, f"{[rank.returncode for rank in ranks]}: {failed[0]}"
        return [json.loads(log.read_text().splitlines()[-1]) for log in logs]

    return ran
