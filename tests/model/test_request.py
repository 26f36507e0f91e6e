import json
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.errors import RequestError
from hetero_airflow.model.request import MAX_ALTERNATIVES, Alternative, DeviceRequest, Priority
from hetero_airflow.model.topology import Level, Topology
from hetero_airflow.testing import requests
from hetero_airflow.units import MAX_DURATION_S, ByteRange

GIB = 2**30
EVERYTHING: dict[str, Any] = {
    "device": ["h100:2", {"device": "gpu:0.5", "memory": "8GiB.."}, "cpu:8"],
    "runtime": {"torch": ">=2.8"},
    "labels": {"zone": "eu"},
    "priority": "high",
    "wait_timeout": "2h",
}


def parse(device: object = "gpu", **fields: Any) -> DeviceRequest:
    return DeviceRequest.parse(device, **fields)


@pytest.mark.parametrize(
    ("device", "alternatives"),
    [
        ("gpu", (Alternative(kind="gpu"),)),
        (" GPU:2 ", (Alternative(kind="gpu", count=2),)),
        ("gpu:0.5", (Alternative(kind="gpu", share=0.5),)),
        ("gpu:.25", (Alternative(kind="gpu", share=0.25),)),
        ("amd", (Alternative(vendor="amd", kind="gpu"),)),
        ("a100-80gb:4", (Alternative(vendor="nvidia", kind="gpu", model="a100-80gb", count=4),)),
        ("acme/x1", (Alternative(vendor="acme", model="x1"),)),
        ("acme/npu:2", (Alternative(vendor="acme", kind="npu", count=2),)),
        ("acme/x9000", (Alternative(vendor="acme", model="x9000"),)),
        ("mig-1g.10gb", (Alternative(vendor="nvidia", kind="gpu", partition="1g.10gb"),)),
        ("cpu:8", (Alternative(kind="cpu", count=8),)),
        (["h100:2", "a100:4"], (
            Alternative(vendor="nvidia", kind="gpu", model="h100", count=2),
            Alternative(vendor="nvidia", kind="gpu", model="a100", count=4),
        )),
        ({"device": "gpu", "count": 2, "memory": "40GiB.."}, (
            Alternative(kind="gpu", count=2, memory=ByteRange(40 * GIB, None)),
        )),
        (Alternative(kind="gpu", count=3), (Alternative(kind="gpu", count=3),)),
    ],
)  # fmt: skip
def test_the_texts_of_a_user_are_read(device: object, alternatives: tuple[Alternative, ...]) -> None:
    assert parse(device) == DeviceRequest(alternatives=alternatives)


def test_everything_at_once() -> None:
    shared: dict[str, Any] = {"runtime": {"torch": ">=2.8"}, "labels": {"zone": "eu"}}
    assert parse(**EVERYTHING) == DeviceRequest(
        alternatives=(
            Alternative(vendor="nvidia", kind="gpu", model="h100", count=2, **shared),
            Alternative(kind="gpu", share=0.5, memory=ByteRange(8 * GIB, None), **shared),
            Alternative(kind="cpu", count=8, **shared),
        ),
        priority=Priority.HIGH,
        wait_timeout_s=7200.0,
    )


def test_a_set_leaves_the_choice_to_the_policy_and_has_no_order() -> None:
    assert parse({"a100", "h100"}) == parse({"h100", "a100"})
    assert not parse({"a100", "h100"}).is_ordered
    assert parse(["a100", "h100"]).is_ordered


def test_a_quota_applies_to_alternatives_without_that_field() -> None:
    request = parse(["h100", {"device": "a100", "memory": "80GiB.."}], quota={"memory": "40GiB..", "cpus": 4})
    assert [(str(a.memory), a.cpus) for a in request.alternatives] == [("40GiB..", 4), ("80GiB..", 4)]


def test_a_topology_applies_to_alternatives_without_one() -> None:
    request = parse([{"device": "h100:4", "topology": "numa"}, "a100:4", "cpu:8"], topology="rack@90m")
    assert [str(a) for a in request.alternatives] == [
        "4 × nvidia/h100 (topology=numa)",
        "4 × nvidia/a100 (topology=rack@90m)",
        "8 × cpu (topology=rack@90m)",
    ]
    assert request.alternatives[1].topology == Topology(Level.RACK, 5400.0)


def test_the_schema_shows_how_a_topology_is_written() -> None:
    forms = DeviceRequest.model_json_schema()["$defs"]["Alternative"]["properties"]["topology"]["anyOf"]
    assert [form.get("pattern") for form in forms] == ["^(nvlink|numa|host|rack|site)(@.+)?$", None]


def test_the_same_quantity_twice_is_no_contradiction() -> None:
    assert parse("gpu:2", quota={"count": 2}) == parse("gpu:2")


LONG = "x" * 100_000
DEEP: list[object] = []
for _ in range(100_000):
    DEEP = [DEEP]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("arguments", "field", "remedy"),
    [
        ({"device": "gpuu"}, "device", 'Did you mean "gpu"?'),
        ({"device": "nvida"}, "device", 'Did you mean "nvidia"?'),
        ({"device": "wat"}, "device", "Use a kind (cpu, gpu"),
        ({"device": ""}, "device", 'Write it as "gpu:2"'),
        ({"device": "gpu:"}, "device", "Give a whole number of devices"),
        ({"device": "gpu:0"}, "device", "Give a whole number of devices"),
        ({"device": "gpu:-1"}, "device", "Give a whole number of devices"),
        ({"device": "gpu:1.5"}, "device", "Give a whole number of devices"),
        ({"device": "gpu:nan"}, "device", "Give a whole number of devices"),
        ({"device": "gpu:٣"}, "device", "Give a whole number of devices"),
        ({"device": "gpu:1000000000000"}, "device", "Ask for fewer devices"),
        ({"device": " gpu : 2 "}, "device", 'Did you mean "gpu:2"?'),
        ({"device": "nvidia / a100: 2"}, "device", 'Did you mean "nvidia/a100:2"?'),
        ({"device": "a1000:2"}, "device", 'Did you mean "a100:2"?'),
        ({"device": "gpu:5000"}, "count", "Give a whole number from 1 to 4096"),
        ({"device": "gpu:2:3"}, "device", 'Write it as "gpu:2"'),
        ({"device": "amd/mig-1g.10gb"}, "device", "Only NVIDIA has MIG"),
        ({"device": LONG}, "device", 'Write it as "gpu:2"'),
        ({"device": 7}, "device", 'Give a text such as "gpu:2"'),
        ({"device": None}, "device", 'Give a text such as "gpu:2"'),
        ({"device": []}, "device", 'Name one, such as "gpu:2"'),
        ({"device": ["gpu"] * (MAX_ALTERNATIVES + 1)}, "device", "Name fewer"),
        ({"device": DEEP}, "device", 'Give a text such as "gpu:2"'),
        ({"device": Unprintable()}, "device", 'Give a text such as "gpu:2"'),
        ({"device": {}}, "device", "Name one, as in"),
        ({"device": {"count": 2}}, "device", "Name one, as in"),
        ({"device": {"device": "gpu", "colour": "red"}}, "device['colour']", "Use device, vendor, kind"),
        ({"device": {"device": "gpu:2", "count": 3}}, "count", "Give it once"),
        ({"device": "gpu:2", "quota": {"count": 3}}, "count", "Give it once"),
        ({"device": "gpu:2", "quota": {"share": 0.5}}, "share", "a share is a part of one device"),
        ({"device": "cpu:0.5"}, "share", 'Write the number of cores as "cpu:8"'),
        ({"device": "cpu", "quota": {"memory": "8GiB"}}, "memory", "Use host_memory for the memory of the host"),
        ({"device": "cpu", "quota": {"cpus": 8}}, "cpus", 'Write the number of cores as "cpu:8"'),
        ({"quota": 5}, "quota", "Write a mapping with any of count, share"),
        ({"quota": {"gpus": 5}}, "quota['gpus']", "Use count, share"),
        ({"quota": {"count": 0}}, "count", "Give a whole number from 1"),
        ({"quota": {"count": -3}}, "count", "Give a whole number from 1"),
        ({"quota": {"count": 10**18}}, "count", "Give a whole number from 1"),
        ({"quota": {"count": 10**5000}}, "count", "Give a whole number from 1"),
        ({"quota": {"count": True}}, "count", "Give a whole number from 1"),
        ({"quota": {"count": "2"}}, "count", "Give a whole number from 1"),
        ({"quota": {"count": math.nan}}, "count", "Give a whole number from 1"),
        ({"quota": {"share": math.nan}}, "share", "Give a number above 0 and below 1"),
        ({"quota": {"share": 0}}, "share", "Give a number above 0 and below 1"),
        ({"quota": {"share": 1}}, "share", "Give a number above 0 and below 1"),
        ({"quota": {"share": -0.5}}, "share", "Give a number above 0 and below 1"),
        ({"quota": {"memory": "40 apples"}}, "memory", 'Write a size such as "40GiB"'),
        ({"quota": {"memory": "0GiB"}}, "memory", 'Write a size such as "40GiB"'),
        ({"quota": {"memory": 10**18}}, "memory", "Check the unit"),
        ({"quota": {"memory": 10**400}}, "memory", "Check the unit"),
        ({"quota": {"memory": -1}}, "memory", 'Write a size such as "40GiB"'),
        ({"quota": {"memory": math.nan}}, "memory", 'Write a size such as "40GiB"'),
        ({"quota": {"memory": "80GiB..40GiB"}}, "memory", "Swap the two sizes"),
        ({"quota": {"memory": ".."}}, "memory", 'Write "40GiB.."'),
        ({"quota": {"memory": LONG}}, "memory", 'Write a size such as "40GiB"'),
        ({"quota": {"host_memory": 10**5000}}, "host_memory", "Check the unit"),
        ({"runtime": "torch"}, "runtime", "Write a mapping"),
        ({"runtime": 0}, "runtime", "Write a mapping"),
        ({"runtime": []}, "runtime", "Write a mapping"),
        ({"runtime": {"torch": "new"}}, "runtime['torch']", "Write one as pip does"),
        ({"runtime": {"torch": 2}}, "runtime['torch']", "Write one as pip does"),
        ({"runtime": {"torch": ">=" + "9" * 100_000}}, "runtime['torch']", "Write one as pip does"),
        ({"runtime": {"cuda": ">=12", "CUDA": "<12"}}, "runtime", "Give it once"),
        ({"runtime": {LONG: ">=1"}}, "runtime", "Use names of 1 to 128"),
        ({"runtime": {1: ">=1"}}, "runtime", "Use texts as names"),
        ({"runtime": {str(n): ">=1" for n in range(33)}}, "runtime", "Name only what the task needs"),
        ({"driver": "newest"}, "driver", "Write one as pip does"),
        ({"driver": 550}, "driver", "Write one as pip does"),
        ({"labels": False}, "labels", "Write a mapping"),
        ({"labels": {"zone": 3}}, "labels['zone']", 'Write it as a text: "3"'),
        ({"labels": {"zone": LONG}}, "labels['zone']", "Use a shorter text"),
        ({"labels": {"zone": "!"}}, "labels['zone']", 'Write "!7" for not 7'),
        ({"labels": {"zone": "!7,"}}, "labels['zone']", 'Write "!7" for not 7'),
        ({"topology": "nvswitch"}, "topology", 'as in "nvlink@10m"'),
        ({"topology": "anywhere"}, "topology", "Write one of nvlink, numa, host, rack, site"),
        ({"topology": ""}, "topology", "Write one of nvlink"),
        ({"topology": 3}, "topology", "Write one of nvlink"),
        ({"topology": LONG}, "topology", "Write one of nvlink"),
        ({"topology": "nvlink@"}, "topology", 'Write a duration such as "30m"'),
        ({"topology": "nvlink@soon"}, "topology", 'Write a duration such as "30m"'),
        ({"topology": "nvlink@0s"}, "topology", 'Write a duration such as "30m"'),
        ({"topology": "nvlink@999d"}, "topology", "Check the unit"),
        ({"topology": "nvlink@1m@2m"}, "topology", 'Write a duration such as "30m"'),
        ({"device": ["gpu:2", "cpu"], "topology": "numa"}, "topology", "Put topology into the alternative"),
        ({"priority": "asap"}, "priority", "Use urgent, high, medium, low"),
        ({"priority": 1}, "priority", "Use urgent, high, medium, low"),
        ({"priority": ["high"]}, "priority", "Use urgent, high, medium, low"),
        ({"priority": Unprintable()}, "priority", "Use urgent, high, medium, low"),
        ({"wait_timeout": 0}, "wait_timeout", 'Write a duration such as "30m"'),
        ({"wait_timeout": -(10**400)}, "wait_timeout", 'Write a duration such as "30m"'),
        ({"wait_timeout": 10**400}, "wait_timeout", "Check the unit"),
        ({"wait_timeout": math.nan}, "wait_timeout", 'Write a duration such as "30m"'),
        ({"wait_timeout": math.inf}, "wait_timeout", "Check the unit"),
        ({"wait_timeout": timedelta(days=-1)}, "wait_timeout", 'Write a duration such as "30m"'),
        ({"wait_timeout": "2 fortnights"}, "wait_timeout", 'Write a duration such as "30m"'),
        ({"wait_timeout": True}, "wait_timeout", 'Write a duration such as "30m"'),
        ({"data": 1}, "data", "Write a URL or a list of URLs"),
        ({"data": [1]}, "data", "Write s3://bucket/key"),
        ({"data": "/local"}, "data", "Write s3://bucket/key"),
        ({"data": [f"s3://lake/{number}" for number in range(33)]}, "data", "Name their folder"),
        ({"data": "s3://lake/" + LONG}, "data", "Name its folder"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, str) else "",
)
def test_an_error_names_the_field_the_value_and_a_valid_form(
    arguments: dict[str, Any], field: str, remedy: str
) -> None:
    with pytest.raises(RequestError) as caught:
        parse(**arguments)
    assert caught.value.field == field
    assert remedy in caught.value.remedy
    assert len(caught.value.value) <= 80
    assert len(str(caught.value)) < 700


def test_a_number_above_the_limit_and_a_topology_are_shown_as_they_were_typed() -> None:
    with pytest.raises(RequestError, match="found 1000000000000 devices, above the limit of 4096"):
        parse("gpu:1000000000000")
    with pytest.raises(RequestError, match=r"^topology='rack@soon' can't be used; found no duration after the \"@\""):
        parse("gpu", topology="rack@soon")
    with pytest.raises(RequestError) as caught:
        parse("gpu", quota={"memory": "0"})
    assert "Did you mean" not in str(caught.value), "0GiB would be refused, too"


def test_a_ready_request_takes_no_other_argument() -> None:
    ready = parse("gpu")
    assert parse(ready) is ready
    with pytest.raises(RequestError, match="Put priority into the DeviceRequest itself"):
        parse(ready, priority="high")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["device", "quota", "runtime", "driver", "labels", "topology", "spot", "priority", "wait_timeout", "data"]
)


def test_data_keeps_its_order_and_each_url_once() -> None:
    urls = ["s3://lake/train/", "gs://lake", "s3://lake/a%20b.csv", "gs://lake/"]
    request = parse("gpu", data=urls)
    assert request.data == ("s3://lake/train/", "gs://lake/", "s3://lake/a%20b.csv")
    assert parse("gpu", data=urls[0]).data == (urls[0],)
    assert parse("gpu", data=[]) == parse("gpu")
    assert len({parse("gpu", data=url).fingerprint for url in (None, *urls[:3])}) == 4
    assert DeviceRequest.model_validate_json(request.model_dump_json()) == request


def test_no_error_shows_the_password_in_a_url() -> None:
    with pytest.raises(RequestError) as caught:
        parse("gpu", data="s3://user:secret@lake/a")
    assert "secret" not in str(caught.value)


@given(st.dictionaries(NAMES, ANYTHING, min_size=1))
def test_any_argument_is_read_or_refused_with_a_request_error(arguments: dict[str, Any]) -> None:
    try:
        request = parse(**arguments)
    except RequestError:
        return
    assert DeviceRequest.model_validate_json(request.model_dump_json()) == request


@given(requests())
def test_a_request_survives_json_and_pickle_with_the_same_fingerprint(request_: DeviceRequest) -> None:
    for copy in (
        DeviceRequest.model_validate_json(request_.model_dump_json()),
        DeviceRequest.model_validate(json.loads(request_.model_dump_json(exclude_defaults=True))),
        pickle.loads(pickle.dumps(request_)),
    ):
        assert (copy, copy.fingerprint, hash(copy)) == (request_, request_.fingerprint, hash(request_))


def test_a_fingerprint_never_changes() -> None:
    assert parse("gpu").fingerprint == "7e84e03275d3ffcc"
    assert parse(**EVERYTHING).fingerprint == "e95f44170f2404f2"


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        (parse("gpu:2"), parse({"device": "gpu", "count": 2}), True),
        (parse("gpu", labels={"a": "1", "b": "2"}), parse("gpu", labels={"b": "2", "a": "1"}), True),
        (parse("gpu", quota={"memory": 40 * GIB}), parse("gpu", quota={"memory": "40GiB.."}), True),
        (parse("gpu"), parse("gpu:2"), False),
        (parse("gpu"), parse("gpu", priority="high"), False),
        (parse(["gpu", "cpu"]), parse(["cpu", "gpu"]), False),
        (parse("gpu"), parse({"gpu"}), False),
    ],
)
def test_fingerprints_are_equal_where_requests_are(first: DeviceRequest, second: DeviceRequest, is_equal: bool) -> None:
    assert (first == second) is is_equal
    assert (first.fingerprint == second.fingerprint) is is_equal


def test_equal_alternatives_have_one_key() -> None:
    first, second = parse("gpu:2").alternatives[0], parse({"kind": "gpu", "count": 2}).alternatives[0]
    assert (first.key, hash(first)) == (second.key, hash(second))
    assert first.key != parse("gpu:3").alternatives[0].key


def test_priorities_rank_from_urgent_to_low() -> None:
    assert [priority.rank for priority in Priority] == [0, 1, 2, 3]


def test_a_request_reads_as_it_was_written() -> None:
    request = parse("nvidia/a100:2", quota={"cpus": 8, "host_memory": "16GiB", "memory": "40GiB.."}, driver=">=550")
    assert str(request) == "2 × nvidia/a100 (memory=40GiB.., cpus=8, host_memory=16GiB, driver>=550)"
    assert str(parse({"gpu:0.5", "cpu"})) == "1 × cpu | 0.5 of a gpu"


@pytest.mark.parametrize(("given", "spot"), [(None, True), (True, True), (False, False), ("False", False)])
def test_a_request_may_run_on_spot_workers_unless_it_says_no(given: object, spot: bool) -> None:
    request = parse(["gpu", {"device": "a100", "spot": False}], spot=given)
    assert [alternative.spot for alternative in request.alternatives] == [spot, False]
    assert str(request) == f"1 × gpu{'' if spot else ' (spot=False)'} or 1 × nvidia/a100 (spot=False)"
    assert DeviceRequest.model_validate_json(request.model_dump_json()) == request
    assert (parse("gpu", spot=given).fingerprint == parse("gpu").fingerprint) is spot


@pytest.mark.parametrize(("given", "patience"), [(None, True), (True, True), (False, False), ("False", False)])
def test_a_request_has_patience_unless_it_says_no(given: object, patience: bool) -> None:
    request = parse("gpu", patience=given)
    assert request.patience is patience
    assert DeviceRequest.model_validate_json(request.model_dump_json()) == request
    assert (request.fingerprint == parse("gpu").fingerprint) is patience


LEVELS = st.sampled_from([level for level in Level if level is not Level.ANYWHERE])
BUDGETS = st.none() | st.integers(1, 10**6).map(float) | st.integers(1, 10**6).map(lambda ms: ms / 1000)


@given(LEVELS, BUDGETS)
def test_a_topology_is_read_as_it_is_written(level: Level, budget_s: float | None) -> None:
    topology = Topology(level, budget_s)
    assert Topology.parse(str(topology)) == topology


def test_the_longest_wait_budget_is_the_longest_duration() -> None:
    assert Topology.parse("host@366d").budget_s == MAX_DURATION_S


def test_levels_rank_from_the_nearest() -> None:
    assert [level.rank for level in Level] == [0, 1, 2, 3, 4, 5]
    assert [level for level in Level if level.is_within_worker] == [Level.NVLINK, Level.NUMA]
