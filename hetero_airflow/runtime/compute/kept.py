"""Small results that a task keeps for its later runs, beside its checkpoints."""

import logging
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from hetero_airflow.errors import CheckpointError, shorten
from hetero_airflow.runtime.checkpoint_session import CheckpointSession

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 16
MAX_RESULTS = 64
_ATTEMPTS = 5


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    value: JsonValue
    at: datetime


class _Results(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    results: dict[str, _Result] = Field(default={}, max_length=MAX_RESULTS)


class KeptResults:
    """Results under digests, in one object of the task's place. Nothing is kept for a place that is of no task.

    They are hints: who reads one checks it. A store that does not answer is only logged.

    :param name: of the object: ``batch_sizes``
    """

    def __init__(self, session: CheckpointSession, name: str) -> None:
        self._store = session.store
        self._now = session.clock.now
        self._key = session.place.task_key(f"{name}.json")

    def read(self, digest: str) -> JsonValue:
        """What was kept last under a digest; None if nothing was."""
        try:
            results, _ = self._read()
        except CheckpointError as error:
            logger.warning("Results of earlier runs can't be read: %s", error)
            return None
        found = results.get(digest)
        return found.value if found else None

    def keep(self, digest: str, value: JsonValue) -> list[JsonValue]:
        """Keep a result; the oldest of more than 64 are dropped. All results that are kept then; none if it failed."""
        if self._key is None:
            return []
        try:
            for _ in range(_ATTEMPTS):
                results, version = self._read()
                changed = results | {digest: _Result(value=value, at=self._now())}
                newest = sorted(changed.items(), key=lambda item: item[1].at)[-MAX_RESULTS:]
                content = _Results(results=dict(newest)).model_dump_json().encode()
                if self._store.replace(self._key, content, version) is not None:
                    return [result.value for _, result in newest]
        except CheckpointError as error:
            logger.warning("A result is not kept for later runs: %s", error)
        return []

    def _read(self) -> tuple[dict[str, _Result], str | None]:
        stored = self._store.read(self._key, at_most=MAX_BYTES) if self._key else None
        if stored is None:
            return {}, None
        try:
            return _Results.model_validate_json(stored.content).results, stored.version
        except ValidationError:
            logger.warning("%s is written anew, since it can't be read: %s", self._key, shorten(stored.content))
            return {}, stored.version
