"""Join tokens: with one, workers enrol by themselves, within its limits. For fleets whose workers come and go."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import Connection, Engine, Row, func, insert, select, update

from hetero_airflow.errors import IdentityError, shorten
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.sql.transaction import read_transaction, write_transaction

_TOKEN, _KEY, _WORKER = tables.join_token.c, tables.worker_key.c, tables.worker.c

_SILENT = timedelta(seconds=60)
"""An agent that has enrolled and has reported nothing for this long has ended."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token's limits, and how many of its workers there are."""

    id: str
    names: str
    """A pattern of the names that it is for, as of a shell: ``gpu-*``."""
    max_workers: int
    """How many workers that it enrolled may be there at the same time."""
    until: datetime
    created_at: datetime
    revoked_at: datetime | None
    workers: int = 0


class JoinTokens:
    """The tokens in a database that `airflow db migrate` has prepared. Every method is one transaction and may block.

    :raises StoreUnavailable: (every method) the database is down, locked, or not migrated
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, token: JoinToken, secret_hash: str) -> None:
        """Let the holders of the secret enrol workers."""
        values = {"id": token.id, "secret_hash": secret_hash, "names": token.names, "max_workers": token.max_workers}
        values |= {"until": token.until, "created_at": token.created_at}
        with write_transaction(self._engine) as transaction:
            transaction.connection.execute(insert(tables.join_token), values)

    def all(self) -> list[JoinToken]:
        """Every token, also those that are revoked or too old, in the order of their making."""
        with read_transaction(self._engine) as connection:
            rows = connection.execute(select(tables.join_token).order_by(_TOKEN.created_at, _TOKEN.id)).all()
            present = _workers_of(connection, (row.id for row in rows))
        return [
            JoinToken(
                row.id, row.names, row.max_workers, row.until, row.created_at, row.revoked_at, present.get(row.id, 0)
            )
            for row in rows
        ]

    def revoke(self, id: str, now: datetime) -> int:
        """Let nobody join with the token from now on; returns how many of its workers stay, with keys of their own.

        :raises IdentityError: there is no such token, or it is revoked already
        """
        with write_transaction(self._engine) as transaction:
            row = transaction.connection.execute(select(tables.join_token).where(_TOKEN.id == id)).one_or_none()
            if row is None or row.revoked_at is not None:
                found = "no such token" if row is None else "that it is revoked already"
                remedy = "`airflow hetero tokens` lists them"
                raise IdentityError(f"to revoke the join token {shorten(id)}", found=found, remedy=remedy)
            transaction.connection.execute(update(tables.join_token).where(_TOKEN.id == id).values(revoked_at=now))
            return _workers_of(transaction.connection, [id]).get(id, 0)


def read_token(connection: Connection, secret_hash: str) -> Row[*tuple[Any, ...]] | None:
    """The token with this secret; None if there is none."""
    return connection.execute(select(tables.join_token).where(_TOKEN.secret_hash == secret_hash)).one_or_none()


def check_join(
    connection: Connection,
    token: Row[*tuple[Any, ...]],
    key: Row[*tuple[Any, ...]] | None,
    worker_id: str,
    public_key: str,
    now: datetime,
) -> bool:
    """Whether the token's holder may enrol this key for the worker; False if it is enrolled already.

    A worker that a person has revoked stays so. A key of another agent is replaced only if the same token enrolled it,
    and its worker is lost: so machines that come back without their disk keep their names.

    :param key: the worker's row of `tables.worker_key`
    :raises IdentityError: the token's limits, or another agent of this name, forbid it
    """
    asked = f"to enrol worker {shorten(worker_id)} with the join token {token.id}"
    _check_limits(token, asked, worker_id, now)
    state = connection.execute(select(_WORKER.state).where(_WORKER.id == worker_id)).scalar()
    if not _is_new(key, state, asked, public_key):
        return False
    if key is not None and key.public_key is not None and not (key.joined_by == token.id and _is_gone(key, state, now)):
        remedy = "Give each worker a name of its own. Once the other one is lost, the token can replace its key"
        raise IdentityError(asked, found=_OTHERS_KEY, remedy=remedy)
    if _workers_of(connection, [token.id], except_for=worker_id).get(token.id, 0) >= token.max_workers:
        found = f"that this token has enrolled as many workers as it may ({token.max_workers})"
        raise IdentityError(asked, found=found, remedy="Wait until one of them is lost, or make another token")
    return True


def _check_limits(token: Row[*tuple[Any, ...]], asked: str, worker_id: str, now: datetime) -> None:
    """Check what the token allows to any worker of this name."""
    remedy = "Make another token"
    if token.revoked_at is not None:
        raise IdentityError(asked, found="that the token is revoked", remedy=remedy)
    if token.until < now:
        found = f"that the token was valid until {token.until.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        raise IdentityError(asked, found=found, remedy=remedy)
    if not fnmatchcase(worker_id, token.names):
        raise IdentityError(asked, found=f"a token for {token.names}", remedy="Give the agent such a --name")


def check_pod_join(
    connection: Connection, key: Row[*tuple[Any, ...]] | None, worker_id: str, joined_by: str, public_key: str
) -> bool:
    """Whether this key may be enrolled for the pod of this name; False if it is enrolled already.

    A key that the same service account has enrolled is replaced at once: only one pod has this name.

    :param key: the worker's row of `tables.worker_key`
    :raises IdentityError: another agent, or a person, forbids it
    """
    asked = f"to enrol worker {shorten(worker_id)} for {joined_by}"
    state = connection.execute(select(_WORKER.state).where(_WORKER.id == worker_id)).scalar()
    if not _is_new(key, state, asked, public_key):
        return False
    if key is not None and key.public_key is not None and key.joined_by != joined_by:
        raise IdentityError(asked, found=_OTHERS_KEY, remedy="Give each worker a name of its own")
    return True


_OTHERS_KEY = "the key of another agent"


def _is_new(key: Row[*tuple[Any, ...]] | None, state: str | None, asked: str, public_key: str) -> bool:
    """Whether the worker has another key or none.

    :raises IdentityError: a person has revoked the worker, or a scheduler reports it
    """
    if key is None:
        if state is not None:
            found = "a worker of this name that a scheduler reports as its own host"
            raise IdentityError(asked, found=found, remedy="Give this worker another name")
        return True
    if key.revoked_at is not None:
        found = "that a person has revoked the worker"
        raise IdentityError(asked, found=found, remedy=f"Run `airflow hetero enroll {key.worker_id}`, or forget it")
    return bool(key.public_key != public_key)


def _is_gone(key: Row[*tuple[Any, ...]], state: str | None, now: datetime) -> bool:
    """Whether the agent with this key has ended."""
    if state is not None:
        return state == WorkerState.LOST
    return key.enrolled_at is not None and now - key.enrolled_at > _SILENT


def _workers_of(connection: Connection, tokens: Iterable[str], except_for: str = "") -> dict[str, int]:
    """Token → how many of its workers are there, or have just enrolled."""
    query = (
        select(_KEY.joined_by, func.count().label("workers"))
        .outerjoin(tables.worker, _WORKER.id == _KEY.worker_id)
        .where(
            _KEY.joined_by.in_([*tokens]),
            _KEY.revoked_at.is_(None),
            _KEY.worker_id != except_for,
            func.coalesce(_WORKER.state, WorkerState.ONLINE) != WorkerState.LOST,
        )
        .group_by(_KEY.joined_by)
    )
    return {row.joined_by: row.workers for row in connection.execute(query)}
