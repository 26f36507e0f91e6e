"""A torch.profiler trace of a few steps, for a task with ``profile=True``.

It begins after ten steps, when compilation, warm-up and the first reads are over, and ends after twenty. Under
``nsys profile --capture-range=cudaProfilerApi`` it marks these steps for Nsight Systems instead, since only one of the
two can use CUPTI.
"""

import logging
import os
import secrets
import sys
from typing import Any

from hetero_airflow.errors import CheckpointError
from hetero_airflow.runtime.checkpoint_session import CheckpointSession
from hetero_airflow.runtime.gang.ranks import rank
from hetero_airflow.runtime.scratch_folder import ScratchFolder
from hetero_airflow.settings import PROFILE_VARIABLE

logger = logging.getLogger(__name__)

FIRST, LAST = 11, 20
"""The profiled steps of a run, counted from 1."""

_NSYS_VARIABLE = "NSYS_PROFILING_SESSION_ID"
"""Nsight Systems sets it in what it starts."""


class StepProfile:
    """Profiles the first rank, if the task asks for it; else it does nothing."""

    def __init__(self, session: CheckpointSession) -> None:
        self._session = session
        self._done = 0
        self._profiler: Any = None
        self._is_wanted = os.environ.get(PROFILE_VARIABLE) == "1" and rank() == 0

    def after_step(self) -> None:
        """Begin or end between two steps."""
        if not self._is_wanted:
            return
        self._done += 1
        if self._done == FIRST - 1:
            self._begin()
        elif self._done == LAST:
            self.end()

    def end(self) -> None:
        """Keep what was profiled so far."""
        is_wanted, self._is_wanted = self._is_wanted, False
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
        if is_wanted and self._done < FIRST:
            logger.warning("No step is profiled: the run had %d, and a profile begins with step %d.", self._done, FIRST)
        elif hasattr(profiler, "export_chrome_trace"):
            self._keep(profiler)

    def _begin(self) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            logger.warning("No step is profiled: the task does not use torch.")
            self._is_wanted = False
            return
        if _NSYS_VARIABLE in os.environ and torch.cuda.is_available():
            self._profiler = torch.cuda.profiler
            logger.info("Steps %d to %d are marked for Nsight Systems.", FIRST, LAST)
        else:
            self._profiler = torch.profiler.profile(record_shapes=True)
        self._profiler.start()

    def _keep(self, profiler: Any) -> None:
        place = self._session.place
        key = f"{place.path}/profile-{place.token or 0}-{secrets.token_hex(4)}.json.gz"
        scratch = ScratchFolder("hetero-airflow-profile-")
        path = scratch.path().with_suffix(".json.gz")
        try:
            profiler.export_chrome_trace(str(path))
            self._session.store.put(key, path)
        except (CheckpointError, OSError, RuntimeError) as error:
            logger.warning("The profile is not kept: %s", error)
            return
        finally:
            scratch.remove()
        self._session.progress.profiled(key)
        logger.info(
            "Steps %d to %d are profiled: %s/%s. The task's tab has a link. Open it in ui.perfetto.dev.",
            FIRST, self._done, place.url.rstrip("/"), key,
        )  # fmt: skip
