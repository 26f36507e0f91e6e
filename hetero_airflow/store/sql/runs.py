"""Reads ended leases, from which estimates are learned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pydantic import ValidationError
from sqlalchemy import Connection, select

from hetero_airflow.model.device import Device
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.run import Run, RunEnd
from hetero_airflow.store import tables
from hetero_airflow.store.codec import SERVED
from hetero_airflow.store.lease_rules import leased_device_class
from hetero_airflow.store.sql.reads import ReadRequest, log_unreadable
from hetero_airflow.store.sql.transaction import chunks
from hetero_airflow.store.store import MAX_RUNS

_LEASE, _HELD, _REQUEST, _DEVICE = tables.lease.c, tables.lease_device.c, tables.request.c, tables.device.c


def read_runs(connection: Connection, since: int, read_request: ReadRequest) -> tuple[Run, ...]:
    """The newest `MAX_RUNS` leases that ended after this sequence in a known way."""
    rows = connection.execute(
        select(
            *(_LEASE.id, _LEASE.worker_id, _LEASE.changed, _LEASE.granted_at, _LEASE.ended_at, _LEASE.outcome),
            *(_LEASE.request_id, _REQUEST.dag_id, _REQUEST.task_id, _REQUEST.request, _REQUEST.served),
        )
        .join(tables.request, _REQUEST.id == _LEASE.request_id)
        .where(_LEASE.changed > since, _LEASE.outcome.in_([*RunEnd]))
        .order_by(_LEASE.changed.desc(), _LEASE.token.desc())
        .limit(MAX_RUNS)
    ).all()
    claims = _read_claims(connection, [row.id for row in rows])
    devices = _read_devices(connection, {row.worker_id for row in rows})
    runs = []
    for row in reversed(rows):
        leased = leased_device_class(claims[row.id], devices[row.worker_id])
        if leased is None:
            continue
        try:
            asked, served = read_request(row.request).alternatives[0], SERVED.validate_json(row.served)
        except ValidationError as error:
            log_unreadable("request", row.request_id, error)
            continue
        held_s = (row.ended_at - row.granted_at).total_seconds()
        task, end = (row.dag_id, row.task_id), RunEnd(row.outcome)
        runs.append(Run(row.changed, row.request_id, task, asked, *leased, held_s, end, row.ended_at, served))
    return tuple(runs)


def _read_claims(connection: Connection, lease_ids: Iterable[str]) -> Mapping[str, list[Claim]]:
    columns = (_HELD.lease_id, _HELD.device_id, _HELD.milli)
    query = select(*columns).order_by(_HELD.lease_id, _HELD.position)
    claims: defaultdict[str, list[Claim]] = defaultdict(list)
    for chunk in chunks(lease_ids):
        for row in connection.execute(query.where(_HELD.lease_id.in_(chunk))):
            claims[row.lease_id].append(Claim(device_id=row.device_id, share_milli=row.milli))
    return claims


def _read_devices(connection: Connection, worker_ids: Iterable[str]) -> Mapping[str, dict[str, Device]]:
    query = select(_DEVICE.worker_id, _DEVICE.id, _DEVICE.inventory)
    devices: defaultdict[str, dict[str, Device]] = defaultdict(dict)
    for chunk in chunks(sorted(worker_ids)):
        for row in connection.execute(query.where(_DEVICE.worker_id.in_(chunk))):
            try:
                devices[row.worker_id][row.id] = Device.model_validate_json(row.inventory)
            except ValidationError as error:
                log_unreadable("device", row.id, error)
    return devices
