"""The devices that a plan wants, as the tables have them, and what is left of them while it is granted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, case, exists, select

from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import Place
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store import tables
from hetero_airflow.store.codec import CORES
from hetero_airflow.store.cores import choose_cores
from hetero_airflow.store.lease_rules import are_grantable, suits_device_kind
from hetero_airflow.store.sql.holds import read_devices_on_hold
from hetero_airflow.store.sql.json_rows import json_table
from hetero_airflow.store.sql.transaction import WriteTransaction
from hetero_airflow.units import MILLI_PER_DEVICE

_WORKER, _DEVICE, _HELD = tables.worker.c, tables.device.c, tables.lease_device.c


@dataclass(slots=True)
class _FreeDevice:
    """One device."""

    kind: str
    is_open: bool
    """Whether it may be leased at all."""
    milli: int
    """What is left of it."""
    memory_bytes: int | None
    """What is left of its memory; None where nobody counts it."""
    cores: tuple[int, ...]
    """Of a CPU."""
    taken: set[int] = field(default_factory=set)
    """Cores that leases hold."""


class DeviceLedger:
    """Read once under the writers' lock; then every placement of the plan is tried in memory."""

    def __init__(self, writing: WriteTransaction, places: Sequence[Place]) -> None:
        self._accounts: dict[tuple[str, str], _FreeDevice] = {}
        if not places:
            return
        pairs = {(place.worker_id, claim.device_id) for place in places for claim in place.claims}
        wanted = [{"worker_key": worker_id, "key": key} for worker_id, key in sorted(pairs)]
        rows = writing.read_by_rows(_read_devices(writing.dialect), wanted, online=WorkerState.ONLINE)
        barred = read_devices_on_hold(writing.connection, {row.worker_id for row in rows if row.has_bars})
        for row in rows:
            memory = None if row.capacity_memory_bytes is None else row.capacity_memory_bytes - row.used_memory_bytes
            self._accounts[row.worker_id, row.id] = _FreeDevice(
                row.kind,
                row.leasable and row.is_online and (row.worker_id, row.id) not in barred,
                row.capacity_milli - row.used_milli,
                memory,
                () if row.inventory is None else _cores(row.inventory),
            )
        cpus = [{"worker_key": key[0], "key": key[1]} for key, one in self._accounts.items() if one.kind == "cpu"]
        for row in writing.read_by_rows(_read_cores(writing.dialect), cpus):
            self._accounts[row.worker_id, row.device_id].taken.update(CORES.validate_json(row.cores))

    def take(self, place: Place) -> tuple[Claim, ...] | None:
        """The claims with their cores, taken off what is left; None, and nothing taken, where they do not fit."""
        if not are_grantable(place.claims):
            return None
        fits: list[tuple[_FreeDevice, Claim]] = []
        for claim in place.claims:
            account = self._accounts.get((place.worker_id, claim.device_id))
            own = None if account is None else _claim_on(account, claim)
            if account is None or own is None:
                return None
            fits.append((account, own))
        for account, own in fits:
            account.milli -= own.share_milli
            account.taken.update(own.cores)
            if account.memory_bytes is not None:
                account.memory_bytes -= own.memory_bytes
        return tuple(own for _, own in fits)


def _claim_on(account: _FreeDevice, claim: Claim) -> Claim | None:
    """The claim with its cores, or None where the device can't give it."""
    if not account.is_open or not suits_device_kind(account.kind, claim) or claim.share_milli > account.milli:
        return None
    if account.memory_bytes is not None and claim.memory_bytes > account.memory_bytes:
        return None
    if account.kind != "cpu":
        return claim
    cores = choose_cores(account.cores, account.taken, claim.share_milli // MILLI_PER_DEVICE)
    return None if cores is None else replace(claim, cores=cores)


@lru_cache(maxsize=1024)
def _cores(inventory: str) -> tuple[int, ...]:
    return Device.model_validate_json(inventory).cores


@lru_cache(maxsize=2)
def _read_devices(dialect: str) -> Select[Any]:
    wanted = json_table(dialect, worker_key="text", key="text")
    return (
        select(
            _DEVICE.worker_id,
            _DEVICE.id,
            _DEVICE.kind,
            _DEVICE.leasable,
            _DEVICE.capacity_milli,
            _DEVICE.used_milli,
            _DEVICE.capacity_memory_bytes,
            _DEVICE.used_memory_bytes,
            (_WORKER.state == bindparam("online")).label("is_online"),
            exists().where(tables.bar.c.worker_id == _DEVICE.worker_id).label("has_bars"),
            case((_DEVICE.kind == "cpu", _DEVICE.inventory)).label("inventory"),
        )
        .join_from(wanted, tables.device, (_DEVICE.worker_id == wanted.c.worker_key) & (_DEVICE.id == wanted.c.key))
        .join(tables.worker, _WORKER.id == _DEVICE.worker_id)
    )


@lru_cache(maxsize=2)
def _read_cores(dialect: str) -> Select[Any]:
    cpus = json_table(dialect, worker_key="text", key="text")
    held = (_HELD.worker_id == cpus.c.worker_key) & (_HELD.device_id == cpus.c.key) & _HELD.is_held
    return select(_HELD.worker_id, _HELD.device_id, _HELD.cores).join_from(cpus, tables.lease_device, held)
