"""The rules for leases that all stores share: ids, which claims and moves are valid, which cores a lease gets. Pure."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from hetero_airflow.errors import InvalidTransition, LeaseLost, LeaseNotFound, StoreError
from hetero_airflow.model.device import Device, device_class
from hetero_airflow.model.lease import Claim, Lease, LeaseState, check_transition
from hetero_airflow.model.plan import Place
from hetero_airflow.model.run import RunEnd
from hetero_airflow.store.store import LeaseMove
from hetero_airflow.units import MILLI_PER_DEVICE


def lease_id(request_id: str, token: int) -> str:
    """The id of the lease with this token. It is unique in all stores, since request ids are."""
    return f"{request_id}.{token}"


def granted_lease(place: Place, claims: tuple[Claim, ...], token: int, now: datetime, expires_at: datetime) -> Lease:
    """The lease that a placement gets.

    :param claims: those of the placement, with the cores that were chosen
    """
    return Lease(
        id=lease_id(place.request_id, token),
        request_id=place.request_id,
        worker_id=place.worker_id,
        alternative=place.alternative,
        claims=claims,
        token=token,
        state=LeaseState.GRANTED,
        granted_at=now,
        expires_at=expires_at,
        starter=place.starter,
    )


def are_grantable(claims: tuple[Claim, ...]) -> bool:
    """Whether claims can be granted at all: at least one, none negative or empty, no device twice.

    So a wrong plan of any policy can't corrupt the counts of used devices.
    """
    ids = {claim.device_id for claim in claims}
    return (
        bool(claims)
        and len(ids) == len(claims)
        and all(claim.share_milli >= 0 and claim.memory_bytes >= 0 for claim in claims)
        and all(claim.share_milli + claim.memory_bytes > 0 for claim in claims)
    )


def suits_device_kind(kind: str, claim: Claim) -> bool:
    """Whether the claim's share suits this kind of device: whole cores of a CPU, more than 0 of an accelerator."""
    return claim.share_milli % MILLI_PER_DEVICE == 0 if kind == "cpu" else claim.share_milli > 0


def choose_cores(cores: Sequence[int], taken: Collection[int], count: int) -> tuple[int, ...] | None:
    """`count` free cores that are close together, or None if fewer are free.

    `cores` are ordered by NUMA node, so that neighbours share caches and memory. The shortest run of free neighbours
    that is long enough is used (best fit: long runs stay whole for later requests). If no run is long enough, the
    free cores with the smallest span are used. In a tie the first ones are used.

    >>> choose_cores((0, 1, 2, 3, 4, 5), taken={1}, count=2)
    (2, 3)
    >>> choose_cores((0, 2, 4, 6, 1, 3, 5, 7), taken={0, 4, 1}, count=3)
    (3, 5, 7)
    >>> choose_cores((0, 1, 2, 3), taken={1}, count=4) is None
    True
    """
    if count <= 0:
        return ()
    free = [position for position, core in enumerate(cores) if core not in taken]
    if len(free) < count:
        return None
    runs: list[list[int]] = []
    for position in free:
        if runs and runs[-1][-1] == position - 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    chosen = min((run for run in runs if len(run) >= count), key=len, default=None)
    if chosen is None:
        starts = range(len(free) - count + 1)
        first = min(starts, key=lambda start: free[start + count - 1] - free[start])
        chosen = free[first:]
    return tuple(cores[position] for position in chosen[:count])


def check_move(move: LeaseMove, lease: Lease | None) -> Lease | StoreError:
    """The lease if the move is allowed, else the error that says why it is not."""
    if lease is None:
        return LeaseNotFound(
            f"lease {move.lease_id}",
            found="no such lease",
            remedy="It never existed, or its history was deleted: request a new one",
        )
    if lease.token != move.token:
        return LeaseLost(
            f"lease {move.lease_id} with token {move.token}",
            found=f"that its token is {lease.token}",
            remedy="Stop the work that holds the old token; the task with the new token continues",
        )
    try:
        check_transition(lease.id, lease.state, move.to)
    except InvalidTransition as error:
        return error
    return lease


def run_end_of(move: LeaseMove) -> RunEnd | None:
    """How the task ended, for a move to a terminal state; None if it never ran or this is unknown."""
    return RunEnd.LOST if move.end is None and move.to is LeaseState.EVICTED else move.end


def leased_device_class(claims: Sequence[Claim], devices: Mapping[str, Device]) -> tuple[str, int] | None:
    """Class and number of a lease's devices, given the devices of its worker by id.

    Accelerators count if the lease has any, and the first one gives the class; else the CPU's cores count. None if
    one of the devices is no longer known.

    >>> from hetero_airflow.testing import a_cpu, a_device
    >>> devices = {"cpu": a_cpu(), "GPU-0": a_device()}
    >>> half, cores = Claim("GPU-0", share_milli=500), Claim("cpu", share_milli=2000)
    >>> leased_device_class([half, cores], devices)
    ('nvidia/a100-sxm4-40gb', 1)
    >>> leased_device_class([cores], devices)
    ('generic/x86-64', 2)
    """
    if not all(claim.device_id in devices for claim in claims):
        return None
    accelerators = [devices[claim.device_id] for claim in claims if devices[claim.device_id].kind != "cpu"]
    if accelerators:
        return device_class(accelerators[0]), len(accelerators)
    return device_class(devices[claims[0].device_id]), claims[0].share_milli // MILLI_PER_DEVICE
