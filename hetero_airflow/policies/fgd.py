"""Fragmentation gradient descent, the published best on the openb trace; see `matching.fragmentation`."""

from __future__ import annotations

from hetero_airflow.matching.demand import Mix
from hetero_airflow.matching.fragmentation import Fragmentation
from hetero_airflow.policies.asked_mix import asked_mix
from hetero_airflow.policies.valuing import Valuing


class Fgd(Valuing[Mix]):
    """Where the idle accelerators that the mix of requests can't use grow least."""

    def __init__(self) -> None:
        super().__init__("fgd", asked_mix, Fragmentation)
