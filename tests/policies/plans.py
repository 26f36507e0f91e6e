"""What tests read of a plan."""

from hetero_airflow.model.plan import Plan, Wait


def order(plan: Plan) -> list[str]:
    """The requests, in the order of the plan."""
    return [decision.request_id for decision in plan.decisions]


def codes(plan: Plan) -> dict[str, str]:
    """Request → why it waits, or "place"."""
    return {d.request_id: d.reason.code if isinstance(d, Wait) else "place" for d in plan.decisions}


def victims(plan: Plan) -> dict[str, str | None]:
    """Request whose lease is taken back → the request that gains by it."""
    return {preempt.request_id: preempt.beneficiary for preempt in plan.preemptions}
