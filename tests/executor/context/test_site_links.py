from __future__ import annotations

from dataclasses import replace

import pytest

from hetero_airflow.errors import SettingsError
from hetero_airflow.executor.context.site_links import SiteLinks, parse_site_links
from hetero_airflow.model.plan import Place
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.testing import EPOCH, a_pending, a_worker


def a_host(name: str, site: str, **labels: str):
    return a_worker(name, labels={"hetero/site": site, **{f"hetero/{key}": value for key, value in labels.items()}})


@pytest.mark.parametrize("text", ["[]", "fast", '{"a": "10"}', '{"a": 0}', '{"a": true}', '{"a": 1e6}', '{"a": NaN}'])
def test_a_text_that_is_no_speed_is_an_error(text):
    with pytest.raises(SettingsError, match=r"\[hetero\] site_links = .*found no JSON object of Gbit/s"):
        parse_site_links(text, "[hetero] site_links")


def test_a_site_without_a_label_of_its_own_gets_what_is_configured():
    workers = (a_host("a", "berlin"), a_host("b", "berlin", site_gbps="100"), a_host("c", "oslo"), a_worker("d"))
    labelled = SiteLinks({"berlin": 2.5}).labelled(workers)
    assert [worker.labels.get("hetero/site_gbps") for worker in labelled] == ["2.5", "100", None, None]
    assert labelled[1:] == workers[1:]
    assert SiteLinks({}).labelled(workers) is workers


def test_an_unchanged_part_is_the_same_object():
    links, workers = SiteLinks({"berlin": 10}), (a_host("a", "berlin"), a_host("b", "berlin"))
    before = links.labelled(workers)
    assert links.labelled(workers) is before
    after = links.labelled((workers[0], a_host("b", "oslo")))
    assert after[0] is before[0]
    assert "hetero/site_gbps" not in after[1].labels


def test_a_gang_goes_where_the_links_are_fast_and_its_account_says_how_fast():
    hosts = tuple(a_host(name, site) for name, site in (("a", "berlin"), ("b", "oslo"), ("c", "turin")))
    gang = tuple(a_pending(f"g{n}", "gpu:2", gang="g", gang_size=2) for n in range(2))
    snapshot = Snapshot(0, workers=hosts, pending=gang)

    def decide(**gbps: float) -> tuple[list[str], str]:
        labelled = replace(snapshot, workers=SiteLinks(gbps).labelled(hosts))
        places = [
            decision for decision in PriorityPolicy().decide(labelled, EPOCH).decisions if isinstance(decision, Place)
        ]
        return [place.worker_id for place in places], places[0].account.summary.partition("joined by ")[2]

    assert decide() == (["a", "b"], "1.25 GB/s (anywhere)")
    assert decide(berlin=1, oslo=20, turin=15) == (["b", "c"], "1.88 GB/s (anywhere)")
