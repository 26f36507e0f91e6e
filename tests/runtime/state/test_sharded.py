"""Sharded checkpoints with real ranks, which are forked from a process that has imported torch once for all."""

import json
import os
import runpy
from multiprocessing import get_context
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.settings import CHECKPOINT_VARIABLE, CONTROL_VARIABLE

PRELUDE = """
import json, os, pathlib, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from hetero_airflow.runtime import checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
whole = torch.arange(24, dtype=torch.float32).reshape(12, 2)

def state(factor, epoch):
    return {
        "model": {
            "weight": distribute_tensor(whole * factor, mesh, [Shard(0)]),
            "bias": torch.full((3,), factor * 1.0),
        },
        "optimizer": {"param_groups": [{"lr": 0.1 * factor, "step": torch.tensor(factor * 1.0)}]},
        "epoch": epoch,
    }

def say(value):
    pathlib.Path(os.environ["SAID"], str(dist.get_rank())).write_text(json.dumps(value))
"""

SAVE = """
checkpoint.save_distributed(3, state(2, epoch=7), metrics={"loss": 0.5})
checkpoint.wait()
dist.barrier()
"""

LOAD = """
mine = state(0, epoch=0)
step = checkpoint.load_distributed(mine)
weight = mine["model"]["weight"]
say([step, weight.to_local().shape[0], weight.full_tensor().equal(whole * 2), mine["model"]["bias"].tolist(),
     mine["optimizer"]["param_groups"][0]["lr"], mine["optimizer"]["param_groups"][0]["step"].item(), mine["epoch"]])
"""

LOOP = """
import time
notice = pathlib.Path(os.environ["HETERO_AIRFLOW_CONTROL"], "notice")
done = []
try:
    for step in checkpoint.steps(50, every=4):
        done.append(step)
        if dist.get_rank() == 0 and step == 9:
            notice.touch()
        if checkpoint.is_due():
            checkpoint.save_distributed(step, state(step, epoch=step))
except checkpoint.Stopped as stopped:
    say([done, stopped.code])
    raise
"""

RANKS = get_context("forkserver")
RANKS.set_forkserver_preload(["torch.distributed.tensor", "torch.distributed.checkpoint", "hetero_airflow.runtime"])


def run_script(folder: Path, environment: dict[str, str], rank: int) -> None:
    """What a rank does."""
    log = os.open(folder / f"log{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(environment, RANK=str(rank))
    runpy.run_path(str(folder / "script.py"), run_name="__main__")


@pytest.fixture
def run_ranks(tmp_path: Path):
    """Runs a script in so many processes; what each of them said, and their exit codes."""
    place = CheckpointPlace(url=(tmp_path / "store").as_uri(), path="a/b/c/0")
    (tmp_path / "control").mkdir()

    def run(count: int, script: str) -> tuple[list[object], list[int]]:
        outputs_folder = tmp_path / "said"
        outputs_folder.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            CHECKPOINT_VARIABLE: place.model_dump_json(),
            CONTROL_VARIABLE: str(tmp_path / "control"),
            "SAID": str(outputs_folder),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "localhost",
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the ranks meet at ours: no port has to be guessed
        }
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        environment["MASTER_PORT"] = str(store.port)
        (tmp_path / "script.py").write_text(PRELUDE + script)
        ranks = [RANKS.Process(target=run_script, args=(tmp_path, environment, rank)) for rank in range(count)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(600)
        codes = [process.exitcode for process in ranks]
        if set(codes) - {0, 85}:
            pytest.fail("\n".join((tmp_path / f"log{rank}").read_text()[-3000:] for rank in range(count)))
        return [json.loads(path.read_text()) for path in sorted(outputs_folder.iterdir())], codes

    return run


def test_a_checkpoint_of_two_ranks_is_loaded_by_three_and_by_one(run_ranks, tmp_path: Path) -> None:
    assert run_ranks(2, SAVE) == ([], [0, 0])
    (folder,) = (tmp_path / "store" / "a/b/c/0").glob("000000000003-*")
    shards = sorted(path.name for path in (folder / "sharded").iterdir())
    assert len(shards) == 2
    assert all(name.endswith(".safetensors") for name in shards)
    for count, rows in ((3, 4), (1, 12)):
        expected = [3, rows, True, [2, 2, 2], 0.2, 2.0, 7]
        outputs, codes = run_ranks(count, LOAD)
        assert (outputs[:count], codes) == ([expected] * count, [0] * count)


def test_all_ranks_stop_at_the_same_step(run_ranks) -> None:
    outputs, codes = run_ranks(2, LOOP)
    assert codes == [85, 85]
    assert outputs[0] == outputs[1]
    assert outputs[0] in ([list(range(10)), 85], [list(range(11)), 85])
    (last, *_), codes = run_ranks(1, LOAD.replace("whole * 2", "whole * 9"))
    assert (last[0], last[2], codes) == (9, True, [0])
