"""The page on scheduling names every policy, and every section of its benchmark."""

import re
from pathlib import Path

from hetero_airflow import policies
from hetero_airflow.policies import POLICIES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "scheduling.md").read_text()
BENCHMARK = (ROOT / "tests" / "benchmarks" / "bench_schedule.py").read_text()


def test_its_table_has_every_policy_and_no_other():
    named = re.findall(r"^\| `([a-z_]+)`", PAGE, re.M)
    assert sorted(named) == sorted(POLICIES)


def test_the_table_of_the_package_says_when_to_choose_each_policy():
    names = re.findall(r"^([a-z_]+) {2,}\S.*\.$", policies.__doc__ or "", re.M)
    assert sorted(names) == sorted(POLICIES)


def test_its_table_says_of_each_policy_when_to_choose_it_as_the_package_does():
    in_page = dict(re.findall(r"^\| `([a-z_]+)`.*\| ([^|]+) \|$", PAGE, re.M))
    in_package = dict(re.findall(r"^([a-z_]+) {2,}(\S.*)\.$", policies.__doc__, re.M))
    assert set(in_package) == set(POLICIES)
    assert {name: in_page[name] for name in POLICIES} == in_package


def test_the_number_of_policies_in_the_readme_is_right():
    (number,) = re.findall(r"; (\d+) come with the package", (ROOT / "README.md").read_text())
    assert int(number) == len(POLICIES)


def test_every_section_of_the_benchmark_has_its_place_and_its_module():
    (row,) = re.findall(r"^SECTIONS = \((.*?)\)$", BENCHMARK, re.M | re.S)
    sections = re.findall(r'"(\w+)"', row)
    assert sections == re.findall(r"<!-- bench (\w+) -->", PAGE)
    for name in sections:
        assert (ROOT / "tests" / "benchmarks" / f"bench_schedule_{name}.py").is_file()
