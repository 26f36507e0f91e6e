import pickle

import pytest

from hetero_airflow.errors import HeteroError, RequestError, StoreUnavailable, shorten


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("gpu", "'gpu'"),
        (5, "5"),
        ("a" * 100_000, "'" + "a" * 75 + "...'"),
        (10**5000, "<int>"),
        (Unprintable(), "<Unprintable>"),
        ([1] * 1000, "[" + "1, " * 25 + "...]"),
    ],
    ids=["text", "number", "long", "huge", "unprintable", "list"],
)
def test_any_value_is_shown_in_eighty_characters(value: object, text: str) -> None:
    assert shorten(value) == text
    assert len(shorten(value)) <= 80


@pytest.mark.parametrize(
    "error",
    [
        HeteroError("4 GPUs", found="2", remedy="Ask for 2"),
        RequestError("device", "gpuu", found="an unknown word", remedy="Use gpu"),
        StoreUnavailable("a snapshot", found="no database", remedy="Start it"),
    ],
)
def test_an_error_survives_pickling_with_its_fields(error: HeteroError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


def test_a_request_error_is_a_value_error_with_three_parts() -> None:
    error = RequestError("device", "gpuu", found="an unknown word", remedy="Use gpu.")
    assert isinstance(error, ValueError)
    assert str(error) == "device='gpuu' can't be used; found an unknown word. Use gpu."
