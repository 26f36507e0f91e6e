"""The placement that fills a shared cluster best in our measurements; see `matching.packing.expected_fill`."""

from __future__ import annotations

from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.matching.packing.expected_fill import ExpectedFillMeasure
from hetero_airflow.policies.core.scored_policy import ScoredPolicy, rounded_request_mix
from hetero_airflow.policies.core.share_prices import share_prices


class ExpectedFill(ScoredPolicy[RequestMix]):
    """Places where the amount of accelerators that a worker is still expected to lease falls least."""

    def __init__(self) -> None:
        super().__init__("expected_fill", rounded_request_mix, expected_fill_measure)


def expected_fill_measure(mix: RequestMix) -> ExpectedFillMeasure:
    """The measure for a request mix."""
    return ExpectedFillMeasure(mix, share_prices(mix))
