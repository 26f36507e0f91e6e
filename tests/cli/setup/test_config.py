import json
import shlex
from configparser import ConfigParser
from itertools import groupby

import pytest
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.setup.checks import Setting, recommended_settings, uses_our_coordinator
from hetero_airflow.cli.setup.config import check_installation, environment_text, ini_text
from hetero_airflow.contract.executor_names import COORDINATOR_CLASSPATH as COORDINATOR
from hetero_airflow.contract.executor_names import EXECUTOR_CLASSPATH as EXECUTOR
from hetero_airflow.executor.recommended_settings import Recommendation, recommendations

SETTINGS = (
    Setting(Recommendation("core", "executor", "x", "tasks run unplaced", "nothing"), None, "x"),
    Setting(Recommendation("sdk", "a", '{"50%": "it\'s"}', "it is slow", "nothing"), None, '{"50%": "it\'s"}'),
    Setting(Recommendation("sdk", "b", "1", "it is slower", "nothing"), "1", "1"),
)
NOTES = """\
# The executor creates the pool devices\\n of device tasks at its first start.
# This creates the tables: airflow db migrate
# SQLite supports one scheduler. A PostgreSQL URL names its driver, as in postgresql+psycopg2://user@host/airflow,
# since SQLAlchemy 2.1 reads postgresql:// as psycopg 3.
# This checks the installation: airflow hetero config --check"""


def test_ini_text_is_what_airflow_cfg_takes():
    text = ini_text(SETTINGS, "devices\n")
    assert text == (
        """\
# Merge these into the sections of airflow.cfg, or set them as variables: airflow hetero config --env

[core]
# Without it, tasks run unplaced.
executor = x

[sdk]
# Without it, it is slow.
a = {"50%%": "it's"}
# Without it, it is slower.
b = 1

"""
        + NOTES
    )
    parser = ConfigParser()
    parser.read_string(text)
    assert {name: dict(parser[name]) for name in parser.sections()} == {
        "core": {"executor": "x"},
        "sdk": {"a": '{"50%": "it\'s"}', "b": "1"},
    }


def test_environment_text_is_what_a_shell_takes():
    text = environment_text(SETTINGS, "devices\n")
    assert text == (
        """\
# Without it, tasks run unplaced.
export AIRFLOW__CORE__EXECUTOR=x

# Without it, it is slow.
export AIRFLOW__SDK__A='{"50%": "it'"'"'s"}'

# Without it, it is slower.
export AIRFLOW__SDK__B=1

"""
        + NOTES
    )
    assert shlex.split(text, comments=True) == [
        "export",
        "AIRFLOW__CORE__EXECUTOR=x",
        "export",
        'AIRFLOW__SDK__A={"50%": "it\'s"}',
        "export",
        "AIRFLOW__SDK__B=1",
    ]


@pytest.mark.parametrize(
    ("engine", "url", "expected"),
    [
        ("local", "", []),
        ("celery", "", [False]),
        ("edge", "models", [False]),
        ("kubernetes", "s3://models", [True]),
    ],
)
def test_the_place_of_checkpoints_is_checked_if_tasks_can_change_hosts(monkeypatch, engine, url, expected):
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", engine)
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", url)
    findings = list(check_installation(create_engine("sqlite://", poolclass=NullPool)))
    assert [finding.is_ok for finding in findings if finding.subject == "[hetero] checkpoint_url"] == expected


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
        (f"LocalExecutor;red={EXECUTOR}", EXECUTOR),
        (f"CeleryExecutor;red={EXECUTOR};blue=LocalExecutor", f"CeleryExecutor,{EXECUTOR};blue=LocalExecutor"),
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
