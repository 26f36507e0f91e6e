"""The checkpoint session of one process: its place, its claim to publish there, and its saves.

A background thread publishes. One save runs at a time, and the next one waits for it, so that memory holds at most two
copies of a state.
"""

import logging
import operator
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.index import CheckpointEntry
from hetero_airflow.checkpoints.keys import check_file
from hetero_airflow.checkpoints.loading import load_checkpoint, load_latest, read_index
from hetero_airflow.checkpoints.manifest import check_metrics
from hetero_airflow.checkpoints.opening import open_store, split_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import WriteClaim, claim_place, publish
from hetero_airflow.clock import Clock
from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.contract.notice import Stopped, has_notice, read_notice
from hetero_airflow.contract.task_lease import current_lease, lease_grant
from hetero_airflow.errors import CheckpointStoreUnavailable, InvalidCheckpoint, SettingsError, shorten
from hetero_airflow.model.grant import Grant
from hetero_airflow.runtime.cached_checkpoints import FILES, with_host_cache
from hetero_airflow.runtime.gang.ranks import RankCollectives, process_group, rank
from hetero_airflow.runtime.progress_file import ProgressFile
from hetero_airflow.runtime.scratch_folder import ScratchFolder
from hetero_airflow.runtime.state.files import read_state, write_state
from hetero_airflow.runtime.state.tree import StagedState, stage
from hetero_airflow.runtime.step_times import StepTimes
from hetero_airflow.settings import CHECKPOINT_VARIABLE, DATA_VARIABLE, LEASE_VARIABLE

logger = logging.getLogger(__name__)

NICENESS = 10
"""The nice value of the thread that writes, so that the training keeps the cores."""


class BackgroundSaver:
    """Runs one save after the other. The next `wait` raises the error of a save, once."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint", initializer=_yield_cores)
        self._running: Future[None] | None = None

    def start(self, step: int, publish: Callable[[], object]) -> None:
        """Begin a save. Call `wait` first."""
        assert self._running is None
        self._running = self._threads.submit(_publish, step, publish)

    def wait(self) -> None:
        """Return when the current save, if any, is published.

        :raises CheckpointError: the save failed
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()


def _yield_cores() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # on Linux this affects only the thread


def _publish(step: int, publish: Callable[[], object]) -> None:
    try:
        try:
            publish()
        except OSError as error:
            raise scratch_error(error) from error
    except Exception:
        logger.exception("The checkpoint of step %d is not saved; earlier ones are kept", step)
        raise


def scratch_error(error: OSError) -> CheckpointStoreUnavailable:
    """The error for a temporary folder that a checkpoint can't be written to."""
    return CheckpointStoreUnavailable(
        "to write a checkpoint to the temporary folder",
        found=f"{os.strerror(error.errno) if error.errno else type(error).__name__} at {error.filename or 'a file'}",
        remedy="Free space there, or set TMPDIR to a larger disk",
    )


def copy_files(files: Mapping[str, str | os.PathLike[str]], folder: Path) -> None:
    """Copy a task's files into a checkpoint's folder, under their names.

    :raises InvalidCheckpoint: a name outside of the folder, or a path that is not a plain file
    :raises CheckpointStoreUnavailable: the disk is full
    """
    for name, path in files.items():
        target, source = folder / check_file(f"{FILES}/{name}"), Path(path)
        if not source.is_file():
            raise InvalidCheckpoint(
                f"to save the file {shorten(str(source), 200)}",
                found="a folder" if source.is_dir() else "no plain file",
                remedy="Name each plain file; an archive is one file",
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError as error:
            raise scratch_error(error) from error


MAX_STEPS = 10**12
"""The key of a checkpoint has twelve digits for the step."""

LOCAL_FOLDER = "checkpoints"
"""The folder in the working directory that is used without a supervisor."""


class Checkpoint:
    """A loaded checkpoint. Each of its files matches its digest."""

    def __init__(self, entry: CheckpointEntry, folder: Path, scratch: ScratchFolder) -> None:
        self.step = entry.step
        """Its last finished step, counted from 0."""
        self.metrics = entry.metrics
        self.is_final = entry.is_final
        """Whether the work was finished."""
        self.published_at: datetime = entry.published_at
        self.folder = folder
        """The folder of its files; it exists as long as this object."""
        self.files = folder / FILES
        """The folder of the files that were saved as ``files``; it can be empty."""
        self.files.mkdir(exist_ok=True)
        self._scratch = scratch  # lives as long as a checkpoint in it
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @cached_property
    def state(self) -> Any:
        """The saved state, read at the first access; tensors are on the CPU.

        :raises InvalidCheckpoint: the files are not a state
        """
        return read_state(self.folder)

    def __repr__(self) -> str:
        return f"Checkpoint(step={self.step}, metrics={self.metrics})"


class CheckpointSession:
    """The checkpoints of this process. Rank 0 makes the claim at the first load or save."""

    def __init__(
        self, place: CheckpointPlace, store: CheckpointStore, control: Path | None, clock: Clock | None = None
    ) -> None:
        self.place = place
        self.store = store
        self.control = control
        self.collectives = RankCollectives()
        self.background = RankCollectives()
        """For the saving thread, since two threads must not share a process group."""
        self.is_due: Callable[[], bool] | None = None
        """Set by the running loop of `steps`, which then stops at the end of a step."""
        self.before_save: list[Callable[[], None]] = []
        """What all ranks call before the loop of `steps` saves; only rank 0 reads the state."""
        self.state: Any = None
        """What the newest loop of `steps` saves and restores; None without one."""
        self.saved_step: int | None = None
        """The last step that was passed to a save."""
        self.times = StepTimes()
        """What the steps of the running loop wait for."""
        self.published: CheckpointEntry | None = None
        """The newest published checkpoint that this process knows."""
        self.clock = clock or Clock()
        self._saver = BackgroundSaver()
        self._scratch: ScratchFolder | None = None
        self._claim: WriteClaim | None = None
        self._latest: Checkpoint | None = None
        self._staged: StagedState | None = None  # its memory is reused by the next save
        self.progress = ProgressFile(control if rank() == 0 else None, self.clock, times=self.times)

    def latest(self) -> Checkpoint | None:
        """The newest intact checkpoint; waits for a running save."""
        self.begin()
        self.wait()
        if self._latest is not None:
            return self._latest
        scratch = self._scratch_folder()
        folder = scratch.path()
        try:
            entry = load_latest(self.store, self.place, folder)
        except OSError as error:
            raise scratch_error(error) from error
        if entry is None:
            return None
        self._record_published(entry)
        self._latest = Checkpoint(entry, folder, scratch)
        return self._latest

    def forget_latest(self) -> None:
        """Release the loaded checkpoint, with its memory and disk space."""
        self._latest = None

    def save(
        self,
        step: int,
        state: object,
        *,
        metrics: Mapping[str, float] | None,
        files: Mapping[str, str | os.PathLike[str]] | None,
        wait: bool,
        final: bool,
    ) -> None:
        """Copy a state and publish it in the background; see `checkpoint.save`."""
        number = check_step(step)
        valid_metrics = check_metrics(metrics or {})
        if rank() == 0:
            self.begin()
            with self.times.saving():
                self.wait()
                self._copy_and_submit(number, state, files or {}, valid_metrics, final=final)
        self.saved_step = number
        if wait:
            self.wait()
        if not final and self.is_due is None and process_group() is None and self.should_stop():
            self.wait()
            raise self.stopped()

    def _copy_and_submit(
        self,
        step: int,
        state: object,
        files: Mapping[str, str | os.PathLike[str]],
        metrics: Mapping[str, float],
        *,
        final: bool,
    ) -> None:
        folder = self.folder()
        try:
            copy_files(files, folder)
            staged = self._staged = stage(state, over=self._staged)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.submit(step, folder, lambda: write_state(staged, folder), metrics=metrics, final=final)

    def submit(
        self, step: int, folder: Path, write: Callable[[], object], *, metrics: Mapping[str, float], final: bool
    ) -> None:
        """Complete a folder with `write` and publish it, in the background. Call `wait` first."""
        claim = self.begin()
        assert claim is not None
        self.forget_latest()

        def work() -> None:
            try:
                write()
                now = self.clock.now()
                entry = publish(self.store, claim, folder, step=step, metrics=metrics, now=now, is_final=final)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            self._record_published(entry)
            logger.info("Saved the checkpoint of step %d: %s, %d bytes", step, entry.key, entry.size_bytes)

        self._saver.start(step, work)

    def follow(self, step: int, written: Callable[[], object]) -> None:
        """Write this rank's part in the background; rank 0 publishes it."""
        self._saver.start(step, written)

    def wait(self) -> None:
        """Return when all saves are published."""
        self._saver.wait()

    def should_stop(self) -> bool:
        """Whether there is a notice."""
        return has_notice(self.control)

    def stopped(self) -> Stopped:
        """The exception with which the task stops at a notice."""
        notice = read_notice(self.control)
        step = self.published.step if self.published else None
        stopped = Stopped(step=step, cause=notice.cause if notice else "a notice")
        logger.warning("This task has %s.", stopped)
        return stopped

    def folder(self) -> Path:
        """Make a local folder for a checkpoint.

        :raises CheckpointStoreUnavailable: the folder can't be made
        """
        folder = self._scratch_folder().path()
        try:
            folder.mkdir()
        except OSError as error:
            raise scratch_error(error) from error
        return folder

    def _scratch_folder(self) -> ScratchFolder:
        try:
            self._scratch = self._scratch or ScratchFolder()
        except OSError as error:
            raise scratch_error(error) from error
        return self._scratch

    def begin(self) -> WriteClaim | None:
        """Fence out earlier runs, once. Returns the claim to publish, which only rank 0 has.

        :raises FencedOut: a later run has begun
        :raises GrantRefused: no scheduler has granted this process's lease and token
        """
        if self._claim is None and rank() == 0:
            self._claim = claim_place(self.store, self.place, own_grant(self.place))
            if self.place.is_host_bound:
                logger.warning(
                    "Only this host sees the checkpoints in %s. On another host, this task starts at step 0. "
                    "Set [hetero] checkpoint_url to s3://bucket/prefix or file:///shared/folder, on every host.",
                    self.place.url,
                )
        return self._claim

    def _record_published(self, entry: CheckpointEntry) -> None:
        self.published = entry
        self.progress.saved(entry.step, None if self.place.is_host_bound else entry.published_at)


def read_published(own_place: CheckpointPlace, found: Mapping[str, Any]) -> Checkpoint:
    """Load the checkpoint that the sensor found; see `checkpoint.open_published`.

    :param own_place: the place of this task, whose endpoint is used for the other task's place, too; if that is another
        kind of store, the endpoint for data counts
    """
    try:
        url, path, key, digest = (str(found[name]) for name in ("url", "path", "key", "digest"))
    except (KeyError, TypeError):
        raise InvalidCheckpoint(
            f"the checkpoint {shorten(found)}",
            found="no url, path, key and digest",
            remedy="Pass the value that the sensor returned",
        ) from None
    place = own_place.model_copy(update={"url": url, "path": path})
    scheme = split_url(url).scheme
    if scheme != split_url(own_place.url).scheme:
        settings = DataSettings.of(os.environ.get(DATA_VARIABLE))
        fields = {"endpoint": settings.own_endpoints.get(scheme), "endpoints": settings.endpoints}
        place = place.model_copy(update=fields)
    store = with_host_cache(open_store(place), place)
    index = read_index(store, path)
    entries = () if index is None else index.entries
    entry = next((entry for entry in entries if (entry.key, entry.digest) == (key, digest)), None)
    if entry is None:
        raise InvalidCheckpoint(
            f"checkpoint {shorten(key)} of {shorten(path, 200)}",
            found=f"{len(entries)} other checkpoints: it was deleted, or its task was cleared",
            remedy='Let that task keep more checkpoints: checkpoint={"keep_last": 20}',
        )
    scratch = ScratchFolder()
    folder = scratch.path()
    load_checkpoint(store, place, entry, folder)
    return Checkpoint(entry, folder, scratch)


def read_place(text: str | None) -> CheckpointPlace:
    """The place of this process's checkpoints: from its supervisor, else a local folder.

    :raises SettingsError: the supervisor's text can't be read
    """
    if not text:
        return CheckpointPlace(url=Path(LOCAL_FOLDER).absolute().as_uri(), path="local")
    try:
        return CheckpointPlace.model_validate_json(text)
    except ValidationError as error:
        raise SettingsError(
            f"the place of checkpoints in {CHECKPOINT_VARIABLE}",
            found=shorten(text),
            remedy="Leave that variable to HeteroExecutor, or unset it",
        ) from error


def own_grant(place: CheckpointPlace) -> Grant | None:
    """The grant of this process's lease for a place; None without a lease or a token.

    :raises GrantRefused: the lease in the environment has no readable grant
    """
    if place.token is None or not os.environ.get(LEASE_VARIABLE):
        return None
    return lease_grant(current_lease(), place.path)


def check_step(step: object) -> int:
    """The step as an int.

    :raises InvalidCheckpoint: it is not a valid step
    """
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < MAX_STEPS:
        raise InvalidCheckpoint(
            f"step={shorten(step)}",
            found="a value that is not a step",
            remedy="Pass the number of the finished step, from 0",
        )
    return number
