from __future__ import annotations

import json
from itertools import groupby

import pytest

from hetero_airflow.cli.setup.recommended_settings import recommended_settings, uses_our_coordinator
from hetero_airflow.contract.executor_names import COORDINATOR_CLASSPATH as COORDINATOR
from hetero_airflow.contract.executor_names import EXECUTOR_CLASSPATH as EXECUTOR
from hetero_airflow.executor.recommended_settings import recommendations

OURS = json.dumps({"hetero": {"classpath": COORDINATOR}})
RECOMMENDED = {(each.section, each.option): each.value for each in recommendations("hetero")}


def wanted(queue: str = "hetero", **given: str) -> dict[str, tuple[str, bool]]:
    """Option → (wanted, whether it is well), for an installation that has the given options and nothing else."""
    settings = recommended_settings(queue, lambda section, option: given.get(option))
    return {each.recommendation.option: (each.wanted, each.is_ok) for each in settings}


def test_an_empty_installation_gets_all_that_is_recommended():
    assert wanted() == {option: (value, False) for (_, option), value in RECOMMENDED.items()}


def test_recommended_settings_are_ok():
    assert wanted(**{option: value for (_, option), value in RECOMMENDED.items()}) == {
        option: (value, True) for (_, option), value in RECOMMENDED.items()
    }


def test_an_engine_has_settings_of_its_own_and_each_section_stands_once():
    of_all, of_kubernetes = recommendations("hetero"), recommendations("hetero", "kubernetes")
    assert of_kubernetes[: len(of_all)] == of_all
    given = {"worker_pods_creation_batch_size": "64", "task_queued_timeout": "600"}
    settings = recommended_settings("hetero", lambda section, option: given.get(option), "kubernetes")
    existing = {each.recommendation.option: each.wanted for each in settings[len(of_all) :]}
    expected = {
        "task_publish_max_retries": "-1",
        "worker_pods_creation_batch_size": "64",
        "task_queued_timeout": "3600",
    }
    assert existing == expected
    sections = [section for section, _ in groupby(each.section for each in of_kubernetes)]
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        ("", EXECUTOR),
        ("LocalExecutor", EXECUTOR),
        ("CeleryExecutor", f"CeleryExecutor,{EXECUTOR}"),
        (EXECUTOR, EXECUTOR),
        (f"CeleryExecutor,devices:{EXECUTOR}", f"CeleryExecutor,devices:{EXECUTOR}"),
    ],
)
def test_other_executors_stay_the_default(current, expected):
    assert wanted(executor=current)["executor"] == (expected, current == expected)


@pytest.mark.parametrize(
    ("current", "is_ok"),
    [("60", True), ("20.5", True), ("61", False), ("0", False), ("-1", False), ("soon", False), ("nan", False)],
)
def test_a_time_is_ok_if_it_is_as_short(current, is_ok):
    expected = (current if is_ok else "60", is_ok)
    assert wanted(task_instance_heartbeat_timeout=current)["task_instance_heartbeat_timeout"] == expected


@pytest.mark.parametrize(("current", "is_ok"), [("20", True), ("100", True), ("19", False), ("many", False)])
def test_a_count_is_ok_if_it_is_as_great(current, is_ok):
    expected = (current if is_ok else "20", is_ok)
    assert wanted(execution_api_retries=current)["execution_api_retries"] == expected


def test_other_coordinators_stay():
    java = {"java": {"classpath": "x.Java"}}
    settings = wanted(coordinators=json.dumps(java), queue_to_coordinator='{"jvm": "java"}')
    assert json.loads(settings["coordinators"][0]) == java | {"hetero": {"classpath": COORDINATOR}}
    assert json.loads(settings["queue_to_coordinator"][0]) == {"jvm": "java", "hetero": "hetero"}


def test_our_coordinator_keeps_its_other_fields_and_its_spelling():
    existing = json.dumps({"hetero": {"classpath": COORDINATOR, "kwargs": {}}}, separators=(",", ":"))
    settings = wanted(coordinators=existing)
    assert settings["coordinators"] == (existing, True)
    assert settings["queue_to_coordinator"] == ('{"hetero": "hetero"}', False)


def test_our_coordinator_may_have_any_name():
    existing, queues = json.dumps({"d": {"classpath": COORDINATOR}}), '{"hetero": "d"}'
    settings = wanted(coordinators=existing, queue_to_coordinator=queues)
    assert (settings["coordinators"], settings["queue_to_coordinator"]) == ((existing, True), (queues, True))


@pytest.mark.parametrize("text", ["{", "[]", "3", "null", '{"hetero": 3}', '{"hetero": {"classpath": "x.Java"}}'])
def test_an_entry_that_is_not_our_coordinator_is_replaced(text):
    settings = wanted(coordinators=text, queue_to_coordinator='{"hetero": "hetero"}')
    assert settings["coordinators"] == (OURS, False)


@pytest.mark.parametrize("text", ["{", "[]", '{"hetero": ["d"]}', '{"other": "hetero"}', '{"hetero": "java"}'])
def test_a_queue_that_leads_elsewhere_is_not_coordinated(text):
    options = {"coordinators": OURS, "queue_to_coordinator": text}
    assert not uses_our_coordinator("hetero", lambda section, option: options[option])
    assert json.loads(wanted(**options)["queue_to_coordinator"][0])["hetero"] == "hetero"


def test_another_queue_is_mapped_under_its_name():
    assert wanted("gpus")["queue_to_coordinator"] == ('{"gpus": "hetero"}', False)
