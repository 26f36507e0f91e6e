import pytest
from pydantic import ValidationError

from hetero_airflow.model.host_data import MAX_HELD, HostData, held_name


def test_a_report_has_names_that_show_no_keys() -> None:
    assert held_name("s3://lake/train/") != held_name("s3://lake/train")
    assert "lake" not in HostData(held={held_name("s3://lake/train/"): 1}).model_dump_json()


@pytest.mark.parametrize(
    "report",
    [
        {"held": {"s3://lake/a": 1}},
        {"held": {"0" * 16: -1}},
        {"held": {f"{number:016x}": 1 for number in range(MAX_HELD + 1)}},
        {"counts": {"hits": -1}},
        {"counts": {"saved_s": float("nan")}},
        {"more": 1},
    ],
)
def test_a_report_that_no_host_sends_is_refused(report: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HostData.model_validate(report)
