"""The enrolled keys in this process's memory: which of them has signed a request.

Whether a key still counts is decided where the request is written, in the transaction; so what is old here can refuse
a request for a moment, until it is read again, but never let one pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hetero_airflow.agent.protocol import RefusalCode
from hetero_airflow.agent.tokens import (
    TokenClaims,
    TokenRefused,
    claimed_worker,
    read_public_key,
    read_token,
    unknown_key_error,
)
from hetero_airflow.store.sql.worker_keys import KeyChange

GATHER_S = 0.2
"""So long whoever has no known key waits for others, so that no flood of them asks the database more often."""


@dataclass(frozen=True, slots=True)
class _EnrolledKey:
    digits: str
    key: Ed25519PublicKey


class KeyRing:
    """Reads the keys that changed whenever one is missing or does not fit.

    :param changes: the keys that changed after a sequence; blocks, so it is called in a thread
    """

    def __init__(self, changes: Callable[[int], Sequence[KeyChange]]) -> None:
        self._changes = changes
        self._keys: dict[str, _EnrolledKey] = {}
        self._since = 0
        self._reading: asyncio.Task[None] | None = None

    async def read(self, token: str, now: datetime) -> tuple[TokenClaims, str]:
        """What a token says, and the public key that has signed it.

        :raises TokenRefused: it is none, its time is over, or no enrolled key of its worker has signed it
        :raises StoreUnavailable: a key is missing and the database does not answer
        """
        worker = claimed_worker(token)
        known = self._keys.get(worker)
        if known is not None:
            try:
                return read_token(token, known.key, now), known.digits
            except TokenRefused as error:
                if error.code is not RefusalCode.UNKNOWN_KEY:
                    raise
        await self._refresh()
        newer = self._keys.get(worker)
        if newer is None or newer is known:
            raise unknown_key_error()
        return read_token(token, newer.key, now), newer.digits

    async def _refresh(self) -> None:
        """Read what changed, beginning after this was called; all who wait share one reading."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        await asyncio.sleep(GATHER_S)
        self._reading = None
        for change in await asyncio.to_thread(self._changes, self._since):
            if change.public_key is None:
                self._keys.pop(change.worker_id, None)
            else:
                self._keys[change.worker_id] = _EnrolledKey(change.public_key, read_public_key(change.public_key))
            self._since = max(self._since, change.changed)
