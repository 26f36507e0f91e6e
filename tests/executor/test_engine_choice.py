import pytest
from airflow.executors.base_executor import BaseExecutor

from hetero_airflow import engines
from hetero_airflow.engines.local import LocalEngine
from hetero_airflow.errors import SettingsError
from hetero_airflow.executor import HeteroExecutor
from hetero_airflow.executor.configuration import configured_engine
from hetero_airflow.registry import load


def test_the_local_engine_is_the_default():
    assert configured_engine() is LocalEngine


def test_an_unknown_engine_is_refused(monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", "sellery")
    with pytest.raises(SettingsError, match=r"engine = sellery; found no such engine\. Use local"):
        configured_engine()


@pytest.mark.parametrize("name", engines.ENGINES)
def test_airflow_reads_the_traits_of_the_configured_engine_from_the_class(monkeypatch, name):
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", name)
    traits = load(engines.GROUP, engines.ENGINES, name).traits
    for trait in ("is_local", "serve_logs", "supports_callbacks", "supports_connection_test"):
        assert getattr(HeteroExecutor, trait) == getattr(traits, trait)
        assert hasattr(BaseExecutor, trait), "Airflow asks for it no more"
