"""A training whose every step depends on all before it, so that one step lost, repeated or mixed up shows in the loss.

Runs as a task, as a reference without Airflow, and, started by hand, as a second live copy of a task.
"""

import hashlib
import json
import os
import signal
import sys
import time

import numpy as np

SIZE = 16_384
"""Numbers of the state: 128 KiB each of weights and velocity, more than `faults_checkpoints.FULL` lets a file grow."""


class Model:
    """Descent with momentum on noisy targets; the noise comes from a generator that is part of the state."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        self.weights = np.zeros(SIZE)
        self.velocity = np.zeros(SIZE)

    def step(self):
        error = self.weights - (1 + 0.1 * self.generator.standard_normal(SIZE))
        self.velocity = 0.9 * self.velocity - 0.02 * error
        self.weights = self.weights + self.velocity
        return float((error * error).sum())

    def state_dict(self):
        state = self.generator.bit_generator.state
        return {"weights": self.weights, "velocity": self.velocity, "generator": json.dumps(state)}

    def load_state_dict(self, state):
        self.weights, self.velocity = state["weights"], state["velocity"]
        self.generator.bit_generator.state = json.loads(state["generator"])

    def digest(self):
        parts = (self.weights.tobytes(), self.velocity.tobytes(), self.state_dict()["generator"].encode())
        return hashlib.sha256(b"".join(parts)).hexdigest()


class DeadlyStore:
    """A checkpoint store that kills its process (kill -9) right after the n-th change that is asked of it.

    :param after: 0 dies before the first; of a save, the changes are two shards, the manifest, the index, the feed, and
        the sweep
    """

    def __init__(self, store, after):
        self._store = store
        self._left = after
        self.read, self.fetch = store.read, store.fetch

    def put(self, *args):
        self._count()
        self._store.put(*args)

    def replace(self, *args):
        self._count()
        return self._store.replace(*args)

    def sweep(self, *args):
        self._count()
        yield from self._store.sweep(*args)

    def _count(self):
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def train(journal, steps, nap_s, every, seed, deaths=()):
    """Train to the end, and note each step in the journal; the last loss.

    :param deaths: the first start of the task dies at the first of these changes of its checkpoint store, and so on
    """
    from hetero_airflow.runtime import checkpoint, current_lease

    is_task = "HETERO_AIRFLOW_LEASE" in os.environ
    about = {"pid": os.getpid(), "ids": list(current_lease().ids) if is_task else []}
    if "RANK" in os.environ:
        journal = join_ranks(journal)
    place, lease = os.environ.get("HETERO_AIRFLOW_CHECKPOINT"), os.environ.get("HETERO_AIRFLOW_LEASE")
    starts = note(journal, {**about, "place": place, "lease": lease})
    session = checkpoint.session()
    if starts < len(deaths):
        session.store = DeadlyStore(session.store, deaths[starts])
    model = Model(seed)
    loss = None
    for step in checkpoint.steps(steps, every=every, state=model):
        loss = model.step()
        note(journal, {**about, "step": step, "loss": loss})
        time.sleep(nap_s)
    return loss


def join_ranks(journal):
    """Join the other ranks of torchrun, all of which do the same; the journal of this one: rank 0 has the task's."""
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    note(f"{journal}.ranks", {"rank": torch.distributed.get_rank(), "pid": os.getpid()})
    return journal if torch.distributed.get_rank() == 0 else f"{journal}.{torch.distributed.get_rank()}"


def note(journal, line):
    """Append a line with the time; how many starts the journal had before."""
    path = os.fspath(journal)
    starts = 0
    if os.path.exists(path):
        with open(path) as file:
            starts = sum('"place"' in known for known in file)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps({**line, "at": time.time()}) + "\n").encode())
    finally:
        os.close(descriptor)
    return starts


if __name__ == "__main__":
    train(**json.loads(sys.argv[1]))
