"""Heterogeneity-aware assignment: each job runs where it has a comparative advantage; durations need not be known.

Gavel (Narayanan et al., OSDI 2020, section 4) maximises the sum of effective throughputs, each normalised by the job's
own. Here this is an assignment instead of a linear program, and it is solved again at each event. It uses a power of
the throughput r, not r itself. In the steady state of a stable cluster the mean delay is least if a job goes to the
class with the greatest r / price, not r - price. (This follows from the fluid linear program: work on class k costs
1/r of its time. The price of that time is 1 plus the delay of others.) A small power behaves almost like the
logarithm, and so almost like the ratio. Unlike the logarithm, a power gives a waiting job the value 0.

The weight is nearly equal for all jobs: while few wait, each second of work done is a second of completion time saved,
whichever job does it. A job that has run little comes a bit before one that has run long (least attained service, as in
Tiresias; Nuijens and Wierman, Performance Evaluation 65, 2008), and a job that was delayed for very long before all.

Measured on streams like Gavel's with seeds of our own, 60 s for a restart, against weights attained^-0.25 and
exponent 1: mean JCT 1 % less on 12 devices of each class, 4 % less on 36 of each class at load 0.82, 17 % less at load
0.96. Known sizes as weights would gain nothing more at load 0.82.
"""

from hetero_airflow.matching.scoring import PlacementScorer
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.class_assignment.candidates import Candidate
from hetero_airflow.policies.class_assignment.weighted_assignment import WeightedAssignment
from hetero_airflow.policies.core.mix_scorer import ScorerByMix, rounded_request_mix
from hetero_airflow.policies.core.predicted_order import PredictedOrder

EXPONENT = 0.3
"""0.2 to 0.5 are as good."""

NEWCOMER = 0.2
"""By how much a request that has not run weighs more than one that has run long; 0.1 to 0.4 are as good."""

YOUNG, LATE = 0.15, 30.0
"""In mean runs: a request that has run for less is a newcomer, and one that was delayed by so much weighs twice."""


class Assignment(WeightedAssignment):
    """Uses speeds where they are known, and is fair by age where they are not.

    Predicted lengths count only where nothing is taken back within a class.
    """

    bounds_interruptions = True

    def __init__(self) -> None:
        super().__init__("assignment", weight, EXPONENT, PredictedOrder())
        self._whole_devices = self._matcher.scorer
        self._shares = ScorerByMix(self._whole_devices)

    def _scorer_for(self, snapshot: Snapshot) -> PlacementScorer:
        """By the mix of requests to come where shares and whole devices mix."""
        mix = rounded_request_mix(snapshot)
        is_whole = {alternative.share is None for alternative, _ in mix if alternative.kind != "cpu"}
        return self._shares(mix) if len(is_whole) == 2 else self._whole_devices


def weight(candidate: Candidate, mean_run_s: float) -> float:
    """1 for a request that has run long and without delay."""
    youth = NEWCOMER / (1 + candidate.done_s / (YOUNG * mean_run_s))
    return 1 + youth + (candidate.delayed_s / (LATE * mean_run_s)) ** 2
