"""A bad request is Airflow's import error of the DAG file."""

import pytest
from airflow.dag_processing.dagbag import DagBag

DAG_FILE = """
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG
from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator
with DAG("a_dag", schedule=None):
    {statement}
"""

PLAIN = 'DevicePythonOperator(task_id="t", python_callable=print, device={device}, {rest})'
MAPPED = 'DeviceBashOperator.partial(task_id="t", device={device}, {rest}).expand(bash_command=["a"])'


@pytest.fixture
def import_errors(tmp_path):
    def _import_errors(statement):
        (tmp_path / "a_dag.py").write_text(DAG_FILE.format(statement=statement))
        return list(DagBag(tmp_path).import_errors.values())

    return _import_errors


@pytest.mark.parametrize("operator", [PLAIN, MAPPED])
@pytest.mark.parametrize(
    ("device", "arguments", "phrases"),
    [
        ("'gpuu'", "", ["device='gpuu'", 'Did you mean "gpu"?']),
        ("'cpu:8'", "quota={'memory': '4GiB'}", ["memory='4GiB..'", "Use host_memory"]),
        ("'gpu:0'", "", ["device='gpu:0'", "the quantity '0'", '"gpu:2"']),
        ("'gpu'", "quota={'share': float('nan')}", ["share=nan", "above 0 and below 1"]),
        ("'gpu'", "runtime={'cuda': 'new'}", ["runtime['cuda']='new'", '">=12.4,!=12.6.*"']),
        ("'gpu'", "priority='asap'", ["priority='asap'", "urgent, high, medium, low"]),
        ("'x' * 100_000", "", ["100000 characters", '"gpu:2"']),
    ],
)
def test_it_names_the_field_the_value_and_the_nearest_valid_form(import_errors, operator, device, arguments, phrases):
    (error,) = import_errors(operator.format(device=device, rest=arguments))
    assert [word for word in phrases if word not in error] == []


def test_a_dag_that_ends_from_a_trigger_is_no_import_error_for_having_us_installed(import_errors):
    """Trap 9: any listener of a plugin would make it one."""
    statement = 'DateTimeSensorAsync(task_id="t", target_time="2026-01-01", end_from_trigger=True)'
    assert import_errors(statement) == []
