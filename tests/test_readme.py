"""What the README and the page on requests show is true: Airflow reads the DAG, and the words are in the grammar."""

import re
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag

from hetero_airflow.contract.envelope import unpack_request
from hetero_airflow.model.request import DeviceRequest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
REQUESTS = (ROOT / "docs" / "requests.md").read_text()


def test_its_dag_is_a_dag_that_asks_for_what_it_says(tmp_path):
    code = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    (tmp_path / "readme.py").write_text(code)
    bag = DagBag(tmp_path)
    assert bag.import_errors == {}
    request = unpack_request(bag.dags["retrain"].get_task("train").executor_config, -1)
    assert request == DeviceRequest.parse(["a100:2", "gpu", "cpu:8"], runtime={"torch": ">=2.9"}, priority="high")


def test_every_device_that_the_page_on_requests_names_is_in_the_grammar():
    (row,) = re.findall(r"^\| `device` \|.*$", REQUESTS, re.M)
    devices = re.findall(r'`"([^"]+)"`', row)
    assert len(devices) == 11
    for device in devices:
        DeviceRequest.parse(device)


def test_every_topology_that_the_page_on_requests_shows_is_in_the_grammar():
    (row,) = re.findall(r"^\| `topology` \|.*\|(.*)\|$", REQUESTS, re.M)
    texts = re.findall(r'`"([^"]+)"`', row)
    assert [str(DeviceRequest.parse("gpu:2", topology=text).alternatives[0].topology) for text in texts] == texts


def test_every_make_target_that_it_names_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets


def test_it_is_short_and_names_pages_that_are_there():
    """It has no relative links, which lead nowhere in an installed wheel."""
    assert len(README.splitlines()) <= 110
    pages = re.findall(r"`(docs/[^`]+|CONTRIBUTING\.md)`", README)
    assert len(pages) > 10
    assert [page for page in pages if not (ROOT / page).is_file()] == []
    images = re.findall(r"!\[[^\]]+\]\((docs/images/[\w.]+)\)", README)
    assert all((ROOT / image).is_file() for image in images)
    assert len(re.findall(r"\]\((?!https://)", README)) == len(images)
