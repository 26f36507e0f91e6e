"""Who may speak for a worker: enrolment, revocation, and the messages of agents, in Airflow's database."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, Engine, Row, insert, select, update

from hetero_airflow.errors import IdentityError, StoreError, shorten
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.store import tables
from hetero_airflow.store.sql.agent_messages import AgentMessage, AgentReply, read_keys, record_messages
from hetero_airflow.store.sql.events import record_events
from hetero_airflow.store.sql.join_tokens import check_join, check_pod_join, read_token
from hetero_airflow.store.sql.transaction import WriteTransaction, read_transaction, write_transaction
from hetero_airflow.store.store import WorkerLost

_KEY = tables.worker_key.c

_NEVER_USED: dict[str, Any] = {"secret_hash": None, "secret_until": None, "nonce": 0, "instance": ""}
"""What a row has beside a key that was just enrolled without a secret of its own."""


def grant_signer(engine: Engine) -> GrantSigner:
    """The signer with the key in the database. The first scheduler that starts makes the key.

    :raises StoreUnavailable: the database is down, locked, or not migrated
    :raises StoreError: what it has there is no key
    """
    column = tables.state.c.grant_key
    with write_transaction(engine) as transaction:
        digits = transaction.connection.execute(select(column)).scalar()
        if digits is None:
            digits = Ed25519PrivateKey.generate().private_bytes_raw().hex()
            transaction.connection.execute(update(tables.state).values(grant_key=digits))
    try:
        return GrantSigner(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(digits)))
    except ValueError:
        raise StoreError(
            "the key that signs the grants of leases",
            found="a value in hetero_state.grant_key that is no Ed25519 key",
            remedy="Set it to NULL and restart all schedulers, then replace the key in the checkpoint stores "
            "(docs/security.md)",
        ) from None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A worker's key since this sequence; None if the worker is not enrolled or is revoked."""

    worker_id: str
    public_key: str | None
    changed: int


class WorkerKeys:
    """The keys in a database that `airflow db migrate` has prepared. Every method is one transaction and may block.

    :raises StoreUnavailable: (every method) the database is down, locked, or not migrated
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_enrolment(self, worker_id: str, secret_hash: str, until: datetime, now: datetime) -> None:
        """Let the holder of the secret enrol a key for the worker, once, until this time.

        :raises IdentityError: the worker has a key, or is the host of a scheduler
        """
        with write_transaction(self._engine) as transaction:
            row = _read_key(transaction.connection, worker_id)
            if row is not None and row.public_key is not None and row.revoked_at is None:
                raise IdentityError(
                    f"to enrol worker {shorten(worker_id)}",
                    found=f"a key that was enrolled at {row.enrolled_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
                    remedy="Run `airflow hetero revoke` first if that key must not be used any more",
                )
            worker = select(tables.worker.c.id).where(tables.worker.c.id == worker_id)
            if row is None and transaction.connection.execute(worker).first() is not None:
                raise IdentityError(
                    f"to enrol worker {shorten(worker_id)}",
                    found="a worker of this name that a scheduler reports as its own host",
                    remedy="Give this worker another name",
                )
            values: dict[str, Any] = {"secret_hash": secret_hash, "secret_until": until, "public_key": None}
            values |= {"enrolled_at": None, "revoked_at": None, "joined_by": None, "nonce": 0, "instance": ""}
            _write_key(transaction, worker_id, values, is_new=row is None)

    def knows_secret(self, secret_hash: str) -> bool:
        """Whether the secret was made for a worker that is not revoked, or is that of a join token."""
        query = select(_KEY.worker_id).where(_KEY.secret_hash == secret_hash)
        with read_transaction(self._engine) as connection:
            return connection.execute(query).first() is not None or read_token(connection, secret_hash) is not None

    def enrol(self, worker_id: str, secret_hash: str, public_key: str, now: datetime) -> None:
        """Store the worker's key. Enrolling the same key with the same secret again changes nothing.

        :param secret_hash: of the worker's own secret, or of a join token
        :raises IdentityError: the secret is not the worker's, was used, or is too old; or the token's limits forbid it
        """
        with read_transaction(
            self._engine
        ) as connection:  # a client that guesses secrets must not take the writers' lock
            _new_values(connection, worker_id, secret_hash, public_key, now)
        with write_transaction(self._engine) as transaction:
            is_new = _read_key(transaction.connection, worker_id) is None
            values = _new_values(transaction.connection, worker_id, secret_hash, public_key, now)
            if values is not None:
                _write_key(transaction, worker_id, values, is_new=is_new)

    def enrol_pod(self, worker_id: str, joined_by: str, public_key: str, now: datetime) -> None:
        """Store the key of a worker whose cluster has vouched for its agent: it is the pod of this name.

        :param joined_by: who vouches: the cluster's service account
        :raises IdentityError: a person has revoked the worker, or others have enrolled or reported one of this name
        """
        with write_transaction(self._engine) as transaction:
            row = _read_key(transaction.connection, worker_id)
            if check_pod_join(transaction.connection, row, worker_id, joined_by, public_key):
                values = {"public_key": public_key, "enrolled_at": now, "joined_by": joined_by} | _NEVER_USED
                _write_key(transaction, worker_id, values, is_new=row is None)

    def revoke(self, worker_id: str, now: datetime) -> bool:
        """Refuse the worker's agent from now on, and give the worker no new task; returns whether it had a key.

        :raises IdentityError: the worker was never enrolled, or is revoked already
        """
        with write_transaction(self._engine) as transaction:
            row = _read_key(transaction.connection, worker_id)
            if row is None or row.revoked_at is not None:
                found = "no enrolled worker of this name" if row is None else "that it is revoked already"
                remedy = "`airflow hetero workers` lists the known workers"
                raise IdentityError(f"to revoke worker {shorten(worker_id)}", found=found, remedy=remedy)
            _write_key(transaction, worker_id, {"revoked_at": now, "secret_hash": None}, is_new=False)
            record_events(transaction, [WorkerLost(worker_id)], now)
            return row.public_key is not None

    def changes(self, since: int) -> list[KeyChange]:
        """The keys that changed after this sequence, in the order of their changes; from 0, all keys."""
        columns = (_KEY.worker_id, _KEY.public_key, _KEY.revoked_at, _KEY.changed)
        with read_transaction(self._engine) as connection:
            rows = connection.execute(select(*columns).where(_KEY.changed > since).order_by(_KEY.changed))
            return [
                KeyChange(row.worker_id, None if row.revoked_at is not None else row.public_key, row.changed)
                for row in rows
            ]

    def take(self, messages: Sequence[AgentMessage], now: datetime) -> list[AgentReply]:
        """Record the messages of agents; returns the reply to each, in order."""
        with write_transaction(self._engine) as transaction:
            return record_messages(transaction, messages, now)


def _new_values(
    connection: Connection, worker_id: str, secret_hash: str, public_key: str, now: datetime
) -> dict[str, Any] | None:
    """What the row of the worker's key has to become; None if it is that already.

    :raises IdentityError: the secret may not enrol this key
    """
    row, token = _read_key(connection, worker_id), read_token(connection, secret_hash)
    enrolled = {"public_key": public_key, "enrolled_at": now}
    if token is None:
        _check_secret(row, worker_id, secret_hash, public_key, now)
        return enrolled if row is not None and row.public_key is None else None
    if not check_join(connection, token, row, worker_id, public_key, now):
        return None
    return {**enrolled, **_NEVER_USED, "joined_by": token.id}


def _check_secret(
    row: Row[*tuple[Any, ...]] | None, worker_id: str, secret_hash: str, public_key: str, now: datetime
) -> None:
    asked = f"to enrol worker {shorten(worker_id)}"
    remedy = "Make a new one with `airflow hetero enroll`, after `airflow hetero revoke` if the worker has a key"
    stored_hash = "" if row is None or row.revoked_at is not None else row.secret_hash or ""
    if row is None or not hmac.compare_digest(stored_hash, secret_hash):
        raise IdentityError(asked, found="a secret that was not made for it", remedy=remedy)
    if row.public_key not in (None, public_key):
        raise IdentityError(asked, found="a secret that another agent has used", remedy=remedy)
    if row.public_key is None and row.secret_until < now:
        raise IdentityError(asked, found="a secret that is too old", remedy=remedy)


def _read_key(connection: Connection, worker_id: str) -> Row[*tuple[Any, ...]] | None:
    return read_keys(connection, {worker_id}).get(worker_id)


def _write_key(transaction: WriteTransaction, worker_id: str, values: dict[str, Any], *, is_new: bool) -> None:
    """Write the row. The sequence grows, so `changes` finds it."""
    values = values | {"changed": transaction.stamp}
    if is_new:
        transaction.connection.execute(insert(tables.worker_key), {"worker_id": worker_id} | values)
    else:
        transaction.connection.execute(update(tables.worker_key).where(_KEY.worker_id == worker_id).values(values))
    transaction.is_visible = True
