"""What every store says of leases in the same way: ids, what can be granted at all, errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero_airflow.errors import InvalidTransition, LeaseLost, LeaseNotFound, StoreError
from hetero_airflow.model.device import Device, device_class
from hetero_airflow.model.lease import Claim, Lease, LeaseState, check_transition
from hetero_airflow.model.run import RunEnd
from hetero_airflow.store.store import LeaseMove
from hetero_airflow.units import MILLI_PER_DEVICE


def lease_id(request_id: str, token: int) -> str:
    """The id of the lease that got that token: request ids are unique, so no other lease of any store has it."""
    return f"{request_id}.{token}"


def are_grantable(claims: tuple[Claim, ...]) -> bool:
    """Whether the claims of a placement can be granted at all: some, none below zero or empty, no device twice.

    A wrong plan must not be able to upset the books, whatever policy made it.
    """
    ids = {claim.device_id for claim in claims}
    return (
        bool(claims)
        and len(ids) == len(claims)
        and all(claim.share_milli >= 0 and claim.memory_bytes >= 0 for claim in claims)
        and all(claim.share_milli + claim.memory_bytes > 0 for claim in claims)
    )


def suits_device_kind(kind: str, claim: Claim) -> bool:
    """Whether the claim's thousandths suit a device of that kind: whole cores of a CPU, some of an accelerator."""
    return claim.share_milli % MILLI_PER_DEVICE == 0 if kind == "cpu" else claim.share_milli > 0


def check_move(move: LeaseMove, lease: Lease | None) -> Lease | StoreError:
    """The lease if it may move, else the error that says why not."""
    if lease is None:
        return LeaseNotFound(
            f"lease {move.lease_id}",
            found="no such lease",
            remedy="It never was, or its history was pruned: ask for a new one",
        )
    if lease.token != move.token:
        return LeaseLost(
            f"lease {move.lease_id} with token {move.token}",
            found=f"its token is {lease.token}",
            remedy="Stop the work that holds the other token; whoever holds this lease now goes on",
        )
    try:
        check_transition(lease.id, lease.state, move.to)
    except InvalidTransition as error:
        return error
    return lease


def run_end_of(move: LeaseMove) -> RunEnd | None:
    """How the task stood at a move to a terminal state; None if it never ran or nobody knows."""
    return RunEnd.LOST if move.end is None and move.to is LeaseState.EVICTED else move.end


def leased_device_class(claims: Sequence[Claim], devices: Mapping[str, Device]) -> tuple[str, int] | None:
    """Class and number of the devices that a lease is about, given those of its worker by id.

    Its accelerators, of which the first gives the class; of a lease of a CPU alone, the cores. None if a
    device is not known any more.

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
