import random

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.model.estimates import NO_ESTIMATES, Estimates, Interval
from hetero_airflow.policies.class_assignment.upward_rank import UNKNOWN_S, UpwardRanks


def name(number):
    return "dag", f"t{number:02}"


def known(durations, edges, classes=None):
    classes = classes or {"x": 1.0}
    return Estimates(
        {name(n): classes for n in durations},
        {name(n): Interval(*[seconds] * 3) for n, seconds in durations.items()},
        edges={name(n): tuple(map(name, after)) for n, after in edges.items()},
    )


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_a_rank_is_the_longest_way_to_an_end(size, rng):
    durations = {n: rng.randint(1, 9) for n in range(size)}
    edges = {n: [m for m in range(n + 1, size) if rng.random() < 0.4] for n in range(size)}

    def longest(number):
        return durations[number] + max(map(longest, edges[number]), default=0)

    estimates, ranks = known(durations, edges), UpwardRanks()
    assert [ranks.rank_s(name(n), estimates) for n in range(size)] == [longest(n) for n in range(size)]


def test_the_mean_over_classes_counts():
    assert UpwardRanks().rank_s(name(0), known({0: 60}, {}, {"fast": 2.0, "slow": 0.5})) == (30 + 120) / 2


def test_an_unknown_duration_counts_as_the_median_of_the_known_ones():
    estimates = known({0: 10, 1: 30, 2: 500}, {7: [0, 8]})
    ranks = UpwardRanks()
    assert [ranks.rank_s(name(n), estimates) for n in (7, 8, 9)] == [60, 30, 30]
    assert ranks.rank_s(name(0), NO_ESTIMATES) == UNKNOWN_S


def test_a_cycle_has_the_same_ranks_in_any_order_of_questions():
    estimates = known({0: 1, 1: 2, 2: 4}, {0: [1], 1: [2, 1], 2: [0]})
    ranks_by_order = []
    for seed in range(4):
        order = random.Random(seed).sample(range(3), 3)
        ranks = UpwardRanks()
        ranks_by_order.append({n: ranks.rank_s(name(n), estimates) for n in order})
    assert ranks_by_order[1:] == ranks_by_order[:1] * 3
    assert ranks_by_order[0] == {0: 7, 1: 6, 2: 4}


def test_a_long_chain_needs_no_deep_stack():
    size = 20_000
    edges = {("dag", str(n)): (("dag", str(n + 1)),) for n in range(size)}
    assert UpwardRanks().rank_s(("dag", "0"), Estimates(edges=edges)) == (size + 1) * UNKNOWN_S
