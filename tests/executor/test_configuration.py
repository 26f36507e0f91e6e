import pytest
from airflow.executors.base_executor import BaseExecutor

from hetero_airflow import engines
from hetero_airflow.engines.local import LocalEngine
from hetero_airflow.errors import SettingsError
from hetero_airflow.executor import HeteroExecutor
from hetero_airflow.executor.configuration import configured_engine, read_configuration
from hetero_airflow.registry import load


def test_the_defaults_are_those_that_the_provider_shows():
    configuration = read_configuration()
    assert (configuration.policy, configuration.pool, configuration.queue) == ("assignment", "hetero_devices", "hetero")
    assert (configuration.lease_timeout_s, configuration.grace_s, configuration.labels) == (15.0, 60.0, {})


@pytest.mark.parametrize(
    ("option", "value", "phrase"),
    [
        ("policy", "prioritty", "priority, fifo, round_robin"),
        ("lease_timeout_s", "soon", "no positive number"),
        ("lease_timeout_s", "nan", "no positive number"),
        ("probe_timeout_s", "-1", "no positive number"),
        ("hang_timeout_s", "15m", "no positive number"),
        ("preempt_within_class", "seldom", "neither yes nor no"),
        ("patience", "some", "neither yes nor no"),
        ("forget_workers_after", "soon", "found no duration. Write a duration of at least 60 s and at most 366d"),
        ("forget_workers_after", "30s", "found 30 s. Write a duration of at least 60 s"),
        ("spot_notices", "amazon", "Use one of aws, gcp, azure, or the path of a notice file"),
        ("shares", "research: 3", "Write each as PATH=WEIGHT"),
        ("labels", "zone=a", "no JSON object of texts"),
        ("labels", '{"zone": 1}', "no JSON object of texts"),
        ("labels", "[" * 100_000, "no JSON object of texts"),
    ],
)
def test_an_option_that_can_not_be_read_is_named_with_its_value_and_what_to_write(monkeypatch, option, value, phrase):
    monkeypatch.setenv(f"AIRFLOW__HETERO__{option.upper()}", value)
    with pytest.raises(SettingsError) as caught:
        read_configuration()
    assert f"[hetero] {option} = " in str(caught.value)
    assert phrase in str(caught.value)
    assert len(str(caught.value)) < 400


def test_options_are_read_from_airflows_configuration(monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__POLICY", "fifo")
    monkeypatch.setenv("AIRFLOW__HETERO__FORGET_WORKERS_AFTER", "12h")
    monkeypatch.setenv("AIRFLOW__HETERO__LABELS", '{"zone": "a"}')
    configuration = read_configuration()
    assert (configuration.policy, configuration.labels) == ("fifo", {"zone": "a"})
    assert configuration.forget_workers_after_s == 12 * 3600


def test_the_local_engine_is_the_default():
    assert configured_engine() is LocalEngine


def test_an_unknown_engine_is_refused(monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", "sellery")
    with pytest.raises(
        SettingsError,
        match=r"found no such engine\. Did you mean .celery.\? Use one of local",
    ):
        configured_engine()


@pytest.mark.parametrize("name", engines.ENGINES)
def test_airflow_reads_the_traits_of_the_configured_engine_from_the_class(monkeypatch, name):
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", name)
    traits = load(engines.GROUP, engines.ENGINES, name).traits
    for trait in ("is_local", "serve_logs", "supports_callbacks", "supports_connection_test"):
        assert getattr(HeteroExecutor, trait) == getattr(traits, trait)
        assert hasattr(BaseExecutor, trait), "Airflow asks for it no more"
