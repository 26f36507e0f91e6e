"""What fills a shared cluster best by our measurements; see `matching.expected_fill`."""

from __future__ import annotations

from hetero_airflow.matching import expected_fill
from hetero_airflow.matching.demand import Mix
from hetero_airflow.policies.asked_mix import rough_mix
from hetero_airflow.policies.share_prices import share_prices
from hetero_airflow.policies.valuing import Valuing


class ExpectedFill(Valuing[Mix]):
    """Where what a worker will still sell of its accelerators falls least."""

    def __init__(self) -> None:
        super().__init__("expected_fill", rough_mix, value)


def value(mix: Mix) -> expected_fill.ExpectedFill:
    """The valuation for a mix."""
    return expected_fill.ExpectedFill(mix, share_prices(mix))
