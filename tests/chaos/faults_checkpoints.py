"""Faults of checkpoints: death while one is published, damage on the disk, a full disk, a second writer."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hetero_airflow.settings import LEASE_VARIABLE
from tests.chaos.reference import TRAINING
from tests.chaos.scene import PATIENCE_S, Injury, Scene, Training

CHANGES_OF_A_CLAIM = 1
"""A start first changes the index: see `publishing.claim`."""
CHANGES_OF_A_SAVE = 6
"""Two shards, the manifest, the index, the feed, the sweep."""

FULL = 64 << 10
"""The largest file on the full disk, in bytes: the journal is smaller, a shard is larger."""


def preemption(scene: Scene) -> tuple[Training, Injury]:
    """An urgent task takes the devices. The training gets a notice, saves, waits, and loses at most one step."""
    training = scene.train()
    scene.some_step(training)
    run_id = scene.airflow.trigger("urgent")
    assert scene.airflow.wait_for_run("urgent", run_id) == "success"
    scene.wait_until(lambda: len(training.starts()) > 1, "the training to go on")
    last = [line for line in training.done() if line["pid"] == training.starts()[0]["pid"]][-1]
    injury = Injury(last["at"], last["step"])
    training.finish()
    recovery = training.recovery(injury)
    assert recovery is not None
    assert recovery[1] <= 1
    assert training.tries() == 1
    return training, injury


def publishing(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 at each stage of publishing a checkpoint, each in another start of the task."""
    stages = list(range(CHANGES_OF_A_SAVE + 1))
    scene.rng.shuffle(stages)
    saves = [scene.rng.randint(0, 1) * CHANGES_OF_A_SAVE for _ in stages]
    deaths = [CHANGES_OF_A_CLAIM + save + stage for save, stage in zip(saves, stages, strict=True)]
    training = scene.train(steps=80, nap_s=0.05, deaths=deaths)
    training.finish()
    assert len(training.starts()) == 1 + len(deaths), "it did not die at every stage"
    last = [line for line in training.done() if line["pid"] == training.starts()[0]["pid"]][-1]
    return training, Injury(last["at"], last["step"])


def truncated(scene: Scene) -> tuple[Training, Injury]:
    """The newest checkpoint loses the end of a shard unnoticed, and the task is killed."""

    def cut(shard: Path) -> None:
        os.truncate(shard, scene.rng.randrange(shard.stat().st_size))

    return _damaged(scene, cut)


def bit_flip(scene: Scene) -> tuple[Training, Injury]:
    """One bit of a shard of the newest checkpoint is flipped, and the task is killed."""

    def flip(shard: Path) -> None:
        content = bytearray(shard.read_bytes())
        content[scene.rng.randrange(len(content))] ^= 1 << scene.rng.randrange(8)
        shard.write_bytes(content)

    return _damaged(scene, flip)


def _damaged(scene: Scene, damage: Callable[[Path], None]) -> tuple[Training, Injury]:
    training = scene.train()
    training.wait_for_checkpoint(2)
    scene.some_step(training, 12, 20)
    training.wound(signal.SIGSTOP)
    injury, newest, before = training.injury(), training.entries()[-1], training.entries()[-2]
    place = training.place()
    folder = Path(unquote(urlsplit(place.url).path)) / place.path / newest.key
    damage(scene.rng.choice(sorted(folder.glob("*.safetensors"))))
    training.process().kill()
    training.finish()
    again = [line["step"] for line in training.done() if line["pid"] == training.starts()[1]["pid"]]
    assert again[0] == before.step + 1, "it did not go on from the checkpoint before the damaged one"
    assert "is damaged, trying the one before" in training.log()
    return training, injury


def full_disk(scene: Scene) -> tuple[Training, Injury]:
    """For some saves no shard fits on the disk. Then the task is killed, and resumes from the last complete checkpoint.

    The test sets the kernel's limit on the size of the process' files. Its errors take the same path as ENOSPC, and no
    test needs the right to mount.
    """
    training = scene.train()
    training.wait_for_checkpoint()
    scene.some_step(training, 5, 10)
    pid = training.process().pid
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL, resource.RLIM_INFINITY))
    last_entry = training.entries()[-1]
    training.wait_for_step(training.step() + scene.rng.randint(5, 9))
    if scene.rng.random() < 0.5:
        injury = training.wound()
    else:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        injury = training.injury()
    training.finish()
    assert last_entry.step < injury.step
    assert "Free space there" in training.log() or "has room" in training.log()
    return training, injury


WITH_LEASE = f"""
import os, runpy, sys
os.environ["{LEASE_VARIABLE}"] = sys.argv.pop(1)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def two_copies(scene: Scene) -> tuple[Training, Injury]:
    """A second process with the task's own right to publish lives on when the task is killed and goes on elsewhere.

    It began without the lease in its environment, so the executor can't find and end it, as on a host that can't be
    reached.
    """
    training = scene.train(steps=60)
    training.wait_for_checkpoint()
    scene.some_step(training, 5, 12)
    journal = training.journal.with_name("copy.jsonl")
    arguments = {"journal": str(journal), "steps": 60, "nap_s": 0.2, "every": 4, "seed": training.seed}
    started = training.starts()[-1]
    environment = {**os.environ, "HETERO_AIRFLOW_CHECKPOINT": started["place"]}
    command = [sys.executable, "-c", WITH_LEASE, started["lease"], str(TRAINING), json.dumps(arguments)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as copy:
        scene.wait_until(lambda: journal.exists() and '"step"' in journal.read_text(), "the copy to step", 0.02)
        copy.send_signal(signal.SIGSTOP)
        injury = training.wound()
        scene.wait_until(lambda: len(training.starts()) > 1 and training.step() > injury.step, "the task to go on")
        copy.send_signal(signal.SIGCONT)
        _, errors = copy.communicate(timeout=PATIENCE_S)
    assert copy.returncode == 1, f"the copy ended with {copy.returncode}"
    assert "FencedOut" in errors, errors[-2000:]
    return training, injury
