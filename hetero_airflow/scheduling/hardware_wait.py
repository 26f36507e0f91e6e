"""How long a request waits for hardware that no known worker has, so that an autoscaled fleet can bring it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from hetero_airflow.model.devices.names import known_products, known_vendors, matches_model, model_tokens
from hetero_airflow.model.plan import Decision, Plan, Refuse, Wait, numbered
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest
from hetero_airflow.model.worker import Worker
from hetero_airflow.validation import did_you_mean


def with_hardware_waits(
    plan: Plan,
    pending: Iterable[PendingRequest],
    workers: Iterable[Worker],
    deadline: Callable[[str], datetime | None],
    now: datetime,
) -> Plan:
    """The plan in which refused requests wait until their deadline; a gang until the first one of its members.

    A request whose models nobody knows is refused at once.

    :param deadline: request id → how long it waits for new workers; None if it does not
    """
    refused = {decision.request_id for decision in plan.decisions if isinstance(decision, Refuse)}
    if not refused:
        return plan
    requests = {request.id: request for request in pending if request.id in refused}
    deadlines = {id_: at for id_ in requests if (at := deadline(id_)) is not None}
    first: dict[str, datetime] = {}
    for id_, at in deadlines.items():
        unit = requests[id_].gang or id_
        first[unit] = min(first.get(unit, at), at)
    known = list(workers)
    ends = {
        id_: end
        for id_ in deadlines
        if (end := first[requests[id_].gang or id_]) > now and not unknown_models(requests[id_].request, known)
    }
    if not ends:
        return plan
    until = min(ends.values()) if plan.until is None else min(plan.until, *ends.values())
    return replace(plan, decisions=numbered(_waiting_instead(plan.decisions, ends)), until=until)


def _waiting_instead(decisions: Iterable[Decision], ends: dict[str, datetime]) -> Iterator[Decision]:
    """The decisions with waits in place of some refusals."""
    for decision in decisions:
        if isinstance(decision, Refuse) and decision.request_id in ends:
            reason = replace(decision.reason, until=ends[decision.request_id], then="the task fails")
            yield Wait(decision.request_id, 0, reason, decision.account)
        else:
            yield decision


def unknown_models(request: DeviceRequest, workers: Iterable[Worker]) -> tuple[str, ...]:
    """The models of a request if neither a table nor a worker knows any of them; empty otherwise."""
    models = tuple(dict.fromkeys(alternative.model for alternative in request.alternatives if alternative.model))
    if any(alternative.model is None for alternative in request.alternatives) or any(map(known_vendors, models)):
        return ()
    seen = map(model_tokens, {device.model for worker in workers for device in worker.devices})
    return () if any(matches_model(model, tokens) for tokens in seen for model in models) else models


def refusal_text(refused: Refuse, request: DeviceRequest, workers: Iterable[Worker], limit: timedelta) -> str:
    """Why a task fails, what was found, and the rule by which it did not wait or waited long enough.

    :param limit: ``[hetero] wait_for_hardware``
    """
    found = f"No known worker can ever run this. The nearest: {refused.nearest}"
    if models := unknown_models(request, workers):
        names = [product.model for product in known_products()]
        hints = "".join(did_you_mean(model, names) for model in models)
        return f"{found}. No worker and no table knows the model {' or '.join(models)}. {hints}".rstrip()
    if not limit:
        return f"{found}. Such a task fails at once, since [hetero] wait_for_hardware is 0"
    own_s, limit_s = request.wait_timeout_s, limit.total_seconds()
    if own_s is not None and own_s < limit_s:
        return f"{found}. It has waited for such a worker for {own_s:g} s (its wait_timeout)"
    return f"{found}. It has waited for such a worker for {limit_s:g} s ([hetero] wait_for_hardware)"
