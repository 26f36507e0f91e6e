"""The enrolled keys in this process's memory, which verify the tokens of requests.

The transaction that writes a request checks again whether the key is still valid. So an outdated key ring may refuse a
request until it is read again, but it can't admit a request with a revoked key.
"""

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
"""Requests without a known key wait this long and share one read, so a flood of them can't overload the database."""


@dataclass(frozen=True, slots=True)
class _EnrolledKey:
    digits: str
    key: Ed25519PublicKey


class KeyRing:
    """Reads the changed keys whenever a key is missing or does not fit.

    :param changes: returns the keys that changed after a sequence; blocks, so it is called in a thread
    """

    def __init__(self, changes: Callable[[int], Sequence[KeyChange]]) -> None:
        self._changes = changes
        self._keys: dict[str, _EnrolledKey] = {}
        self._since = 0
        self._reading: asyncio.Task[None] | None = None

    async def read(self, token: str, now: datetime) -> tuple[TokenClaims, str]:
        """The content of a token, and the public key that verified it.

        :raises TokenRefused: the token is invalid or expired, or no enrolled key of its worker signed it
        :raises StoreUnavailable: a key is missing and the database does not answer
        """
        worker = claimed_worker(token)
        cached = self._keys.get(worker)
        if cached is not None:
            try:
                return read_token(token, cached.key, now), cached.digits
            except TokenRefused as error:
                if error.code is not RefusalCode.UNKNOWN_KEY:
                    raise
        await self._refresh()
        newer = self._keys.get(worker)
        if newer is None or newer is cached:
            raise unknown_key_error()
        return read_token(token, newer.key, now), newer.digits

    async def _refresh(self) -> None:
        """Read the changes. The read starts after this call; all waiting requests share one read."""
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
