"""What fills a shared cluster best by our measurements; see `matching.packing.expected_fill`."""

from __future__ import annotations

from hetero_airflow.matching.packing import expected_fill
from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.policies.core.request_mix import rounded_request_mix
from hetero_airflow.policies.core.scored_policy import ScoredPolicy
from hetero_airflow.policies.core.share_prices import share_prices


class ExpectedFill(ScoredPolicy[RequestMix]):
    """Where what a worker will still sell of its accelerators falls least."""

    def __init__(self) -> None:
        super().__init__("expected_fill", rounded_request_mix, expected_fill_scoring)


def expected_fill_scoring(mix: RequestMix) -> expected_fill.ExpectedFillMeasure:
    """The valuation for a mix."""
    return expected_fill.ExpectedFillMeasure(mix, share_prices(mix))
