import math

import pytest

from hetero_airflow.errors import SettingsError
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShare, TeamShares


def test_teams_with_weights_and_quotas_are_read_in_order():
    text = " research = 3; prod=5 max 8\nresearch/nlp_*=.5,, prod/x max 2 = 1 max 0.5,"
    assert TeamShares.parse(text).teams == (
        TeamShare(("research",), 3.0),
        TeamShare(("prod",), 5.0, 8.0),
        TeamShare(("research", "nlp_*"), 0.5),
        TeamShare(("prod", "x max 2"), 1.0, 0.5),
    )
    assert TeamShares.parse("") == NO_TEAM_SHARES


def test_a_dag_belongs_to_the_first_matching_team_or_to_itself():
    shares = TeamShares.parse("a/nightly_eu*=1, b/nightly_*=1, c/exact=1")
    paths = [shares.path_of(dag_id) for dag_id in ("nightly_eu1", "nightly_us", "exact", "exactly", "Nightly_us")]
    assert paths == [("a", "nightly_eu*"), ("b", "nightly_*"), ("c", "exact"), ("exactly",), ("Nightly_us",)]
    assert (shares.weight(("a",)), shares.quota(("a",))) == (1.0, math.inf)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("research", "no share"),
        ("research=", "no share"),
        ("=3", "no share"),
        ("a//b=3", "no share"),
        ("a=3 most 4", "no share"),
        ("a=-1", "no share"),
        ("a=nan", "no share"),
        ("a=0", "a weight of 0"),
        ("a=10000000", "a weight of 1e+07"),
        ("a=1 max 10000000", "a weight of 1 and a quota of 1e+07"),
        ("b=1, a=2, a=3", "a with the weight 2 before it"),
    ],
)
def test_an_error_shows_the_invalid_share(text, problem):
    with pytest.raises(SettingsError) as caught:
        TeamShares.parse(text, "[hetero] shares")
    wrong = text.split(",")[-1].strip()
    assert (caught.value.asked, caught.value.found) == (f"[hetero] shares = {wrong!r}", problem)
