"""What the README shows is true: its DAG is read by Airflow, its words are in the grammar, its commands are there."""

import re
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag

from hetero_airflow.contract.envelope import unpack_request
from hetero_airflow.model.request import DeviceRequest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_its_dag_is_a_dag_that_asks_for_what_it_says(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    (tmp_path / "readme.py").write_text(code)
    bag = DagBag(tmp_path)
    assert bag.import_errors == {}
    request = unpack_request(bag.dags["retrain"].get_task("train").executor_config, -1)
    assert request == DeviceRequest.parse(["a100:2", "gpu", "cpu:8"], runtime={"torch": ">=2.9"}, priority="high")


def test_every_device_that_it_names_is_in_the_grammar():
    (row,) = re.findall(r"^\| `device` \|.*$", README, re.M)
    devices = re.findall(r'`"([^"]+)"`', row)
    assert len(devices) == 11
    for device in devices:
        DeviceRequest.parse(device)


def test_every_topology_that_it_shows_is_in_the_grammar():
    (row,) = re.findall(r"^\| `topology` \|.*\|(.*)\|$", README, re.M)
    texts = re.findall(r'`"([^"]+)"`', row)
    assert [str(DeviceRequest.parse("gpu:2", topology=text).alternatives[0].topology) for text in texts] == texts


def test_every_make_target_that_it_names_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets
