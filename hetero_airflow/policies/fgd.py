"""Fragmentation gradient descent, the published best on the openb trace; see `matching.packing.fragmentation`."""

from __future__ import annotations

from hetero_airflow.matching.packing.demand import RequestMix
from hetero_airflow.matching.packing.fragmentation import FragmentationMeasure
from hetero_airflow.policies.core.request_mix import request_mix
from hetero_airflow.policies.core.scored_policy import ScoredPolicy


class Fgd(ScoredPolicy[RequestMix]):
    """Where the idle accelerators that the mix of requests can't use grow least."""

    def __init__(self) -> None:
        super().__init__("fgd", request_mix, FragmentationMeasure)
