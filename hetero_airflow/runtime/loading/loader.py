"""A loader that loads ahead, and goes on after an interruption with the batch that comes next."""

import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from hetero_airflow.errors import InvalidCheckpoint, RequestError
from hetero_airflow.runtime.gang.ranks import process_group, rank
from hetero_airflow.runtime.loading.batches import END, batches_of
from hetero_airflow.runtime.loading.device_copy import device_copy
from hetero_airflow.runtime.loading.random_streams import derived_seed

if TYPE_CHECKING:
    from hetero_airflow.runtime.checkpoint_session import CheckpointSession

MAX_PREFETCH = 1000
"""A limit that only a mistake exceeds."""


class Loader:
    """Yields batches, epoch after epoch without end; see `checkpoint.loader`.

    :param session: returns the checkpoint session of this process
    :raises RequestError: no loader, or an invalid `prefetch` or `device`
    """

    def __init__(self, source: Any, prefetch: int, device: Any, session: "Callable[[], CheckpointSession]") -> None:
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 0 <= prefetch <= MAX_PREFETCH:
            raise RequestError("prefetch", prefetch, found="no number of batches", remedy=f"Use 0 to {MAX_PREFETCH}")
        self._batches = batches_of(source)
        self._prefetch = prefetch
        self._copy = device_copy(device)
        self._session = session
        self._seed: int | None = None
        self._start: list[Any] | None = None
        self._epoch: Iterator[Any] | None = None
        self._ahead: deque[Future[Any]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self.epoch = 0
        """Counted from 0."""
        self.batch = 0
        """The number of batches of the epoch that were returned."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._session().times.loading():
            batch = self._next()
            while batch is END:
                self._end_epoch()
                batch = self._next()
        self.batch += 1
        return batch

    def _next(self) -> Any:
        if self._epoch is None:
            self._epoch = self._open()
        return self._load(self._epoch)

    def _end_epoch(self) -> None:
        if not self.batch:
            raise RequestError(
                "loader",
                self._batches,
                found="a data loader without a batch",
                remedy="Check the length of the data set",
            )
        self.epoch, self.batch, self._start, self._epoch = self.epoch + 1, 0, None, None

    def state_dict(self) -> dict[str, Any]:
        """The seed, and the position after the last batch that was returned. What is loaded ahead does not count."""
        return {
            "seed": self._own_seed(),
            "epoch": self.epoch,
            "batch": self.batch,
            "start": self._start if self.batch else None,
            "workers": self._batches.workers,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this position at the next batch.

        :raises InvalidCheckpoint: the number of workers decides which batches come, and it has changed
        """
        workers = self._batches.workers
        if state["batch"] and state["workers"] != workers:
            raise InvalidCheckpoint(
                f"to continue after batch {state['batch']} of epoch {state['epoch']} of an iterable data set",
                found=f"{workers} loader workers instead of {state['workers']}, so other batches would come",
                remedy=f"Use num_workers={state['workers']}, or clear the task to start from the beginning",
            )
        self._discard()
        self._seed, self.epoch, self.batch = state["seed"], state["epoch"], state["batch"]
        self._start, self._epoch = state["start"], None

    def _open(self) -> Iterator[Any]:
        self._start = self._batches.begin(self.epoch, self._start)
        return self._batches.open(self.batch, derived_seed(self._own_seed(), rank(), self.epoch))

    def _load(self, batches: Iterator[Any]) -> Any:
        is_apart = self._prefetch and self._batches.is_apart(is_copied=self._copy is not None)
        if not (self._ahead or is_apart):
            return self._copied(self._read(batches))
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        while len(self._ahead) <= self._prefetch:
            self._ahead.append(self._thread.submit(self._read, batches))
        batch = self._copied(self._ahead.popleft().result())
        if batch is END:
            self._discard()
        return batch

    def _read(self, batches: Iterator[Any]) -> Any:
        """The next batch; if it goes to a device, as the copy that has begun."""
        batch = next(batches, END)
        return batch if self._copy is None or batch is END else self._copy.begin(batch)

    def _copied(self, batch: Any) -> Any:
        return batch if self._copy is None or batch is END else self._copy.end(batch)

    def _discard(self) -> None:
        """Load nothing more of this epoch, and leave the data set alone when this returns."""
        for loading in self._ahead:
            loading.cancel()
        wait(self._ahead)
        self._ahead.clear()

    def _own_seed(self) -> int:
        """What this loader began with. All ranks have the same, so that each can go on from the state of rank 0."""
        if self._seed is None:
            torch = sys.modules.get("torch")
            if process_group() is not None or int(os.environ.get("WORLD_SIZE") or 1) > 1:
                self._seed = derived_seed(self._session().place.path)
            else:
                self._seed = random.getrandbits(62) if torch is None else int(torch.initial_seed()) % 2**62
        return self._seed
