"""ResourceClaims as values: which devices a claim has, and for which pods. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_airflow.engines.kubernetes.slices.drivers import driver_kind


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """The devices of a claim."""

    claim: str
    """Namespace and name of the claim."""
    pod_uids: frozenset[str]
    """The pods that may use them."""
    devices: tuple[str, ...]
    """``driver/pool/device``, as the ids of devices are; without those that only an administrator looks at."""
    problem: str = ""
    """Why a pod can't use them yet, in the driver's words."""


def device_id(driver: str, pool: str, device: str) -> str:
    """The id of a device: unique in its cluster."""
    return f"{driver}/{pool}/{device}"


def read_allocation(item: Mapping[str, Any], _: ClaimAllocation | None = None) -> ClaimAllocation | None:
    """The allocation in a JSON value of a claim; None while it has none."""
    metadata, status = item["metadata"], item.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    if not results:
        return None
    owners = {o["uid"] for o in metadata.get("ownerReferences") or () if o.get("kind") == "Pod"}
    consumers = {c["uid"] for c in status.get("reservedFor") or () if c.get("resource") == "pods"}
    exclusive = [result for result in results if not result.get("adminAccess")]
    return ClaimAllocation(
        f"{metadata.get('namespace', '')}/{metadata['name']}",
        frozenset(owners | consumers),
        tuple(device_id(r["driver"], r["pool"], r["device"]) for r in exclusive),
        "; ".join(_problems(exclusive, status.get("devices") or ())),
    )


def claims_problem(leased: Iterable[str], allocations: Sequence[ClaimAllocation]) -> str:
    """Why the claims of a pod that has begun are not those of its lease; empty if they are.

    A claim can be edited or deleted by hand. The lease stays as it is, since the pod may use its devices.

    :param leased: ids of the devices of the lease
    """
    claimed = {id_ for allocation in allocations for id_ in allocation.devices}
    missing = sorted(id_ for id_ in leased if driver_kind(id_.partition("/")[0]) and id_ not in claimed)
    if not missing:
        return ""
    names = ", ".join(missing)[:500]
    return f"the pod's claims do not have {names} of its lease: somebody has changed or deleted them"


def _problems(results: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What drivers report about devices: failed or missing conditions for binding, and devices that are not ready."""
    for result in results:
        name = device_id(result["driver"], result["pool"], result["device"])
        conditions = _conditions_of(result, states)
        for kind in result.get("bindingFailureConditions") or ():
            if conditions.get(kind, {}).get("status") == "True":
                yield f"{name} can't be prepared: {conditions[kind].get('message') or kind}"
        for kind in result.get("bindingConditions") or ():
            if conditions.get(kind, {}).get("status") != "True":
                yield f"{name} is being prepared: {kind}"
        ready = conditions.get("Ready", {})
        if ready.get("status") == "False":
            yield f"{name} is not ready: {ready.get('message') or ready.get('reason') or ''}"


def _conditions_of(result: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    names = ("driver", "pool", "device", "shareID")
    state = next((s for s in states if all(s.get(name) == result.get(name) for name in names)), {})
    return {condition["type"]: condition for condition in state.get("conditions") or ()}
