import sys

import pytest

from hetero_airflow import registry
from hetero_airflow.errors import RegistryError
from hetero_airflow.policies import GROUP, POLICIES
from hetero_airflow.policies.fifo import Fifo

TABLE = {"here": "os.path:join", "missing": "no_such_module:x", "bare": "os.path:no_such_name"}


def test_a_row_is_imported_when_it_is_asked_for() -> None:
    assert registry.load(GROUP, POLICIES, "fifo") is Fifo


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("hre", "no such name", "Use here"),
        ("zzz", "no such name", "Use here, missing, bare"),
        ("missing", "no_such_module:x can't be imported: No module named 'no_such_module'", "Install what it needs"),
        ("bare", "os.path:no_such_name can't be imported", "Install what it needs"),
    ],
)
def test_a_name_that_can_not_be_loaded_says_what_there_is(name: str, problem: str, remedy: str) -> None:
    with pytest.raises(RegistryError) as caught:
        registry.load("hetero_airflow.nothing", TABLE, name)
    assert problem in caught.value.found
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(("library", "extra"), [("obstore", "cloud"), ("boto3", "s3"), ("kubernetes", "kubernetes")])
def test_the_extra_of_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, library: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    with pytest.raises(RegistryError) as caught:
        registry.load("hetero_airflow.nothing", {"it": f"{library}:x"}, "it")
    assert caught.value.remedy == f"Install hetero-airflow[{extra}]"


def test_an_entry_point_of_another_package_is_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "theirs", "os.path:split"

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point] if group == "g" else [])
    assert registry.names("g", {"here": "os.path:join"}) == ["here", "theirs"]
    assert registry.load("g", {}, "theirs").__name__ == "split"
