from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hetero_airflow.model.device import Device, matches_model, model_tokens
from hetero_airflow.model.devices.names import KINDS, MODELS, VENDORS, parse_device
from hetero_airflow.model.devices.speeds import DATA_SHEETS, data_sheet_speed
from hetero_airflow.testing import a_cpu, a_device, a_worker


@pytest.mark.parametrize(
    ("word", "model", "expected"),
    [
        ("a100", "a100-sxm4-80gb", True),
        ("a100-80gb", "a100-sxm4-80gb", True),
        ("80gb-a100", "a100-sxm4-80gb", True),
        ("a10", "a100-sxm4-80gb", False),
        ("a100", "a10", False),
        ("rtx-4090", "geforce-rtx-4090", True),
        ("rtx4090", "geforce-rtx-4090", True),
        ("4090", "geforce-rtx-4090", True),
        ("910b", "910b3", True),
        ("910b", "910b", True),
        ("910b3", "910b", False),
        ("910b", "910c", False),
        ("l4", "l40s", False),
        ("v5e", "v5e", True),
        ("mi300x", "instinct-mi300x", True),
        ("a100-", "a100-sxm4-80gb", True),
        ("a100--80gb", "a100-sxm4-80gb", True),
    ],
)
def test_every_requested_word_must_be_part_of_the_model(word: str, model: str, expected: bool) -> None:
    assert matches_model(word, model_tokens(model)) is expected


WORDS = st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,20}", fullmatch=True)


@given(WORDS, WORDS)
def test_no_word_crashes_and_a_model_matches_itself(word: str, model: str) -> None:
    assert isinstance(matches_model(word, model_tokens(model)), bool)
    assert matches_model(model, model_tokens(model))


def test_every_well_known_word_is_read() -> None:
    for word in [*KINDS, *VENDORS, *MODELS]:
        assert parse_device(word)
        assert parse_device(f"{word}:2")["count"] == 2


def test_a_well_known_model_is_of_a_well_known_vendor_and_kind() -> None:
    assert {vendor for vendor, _, _ in MODELS.values()} <= set(VENDORS)
    assert {kind for _, kind, _ in MODELS.values()} <= set(KINDS)
    assert all(memory > 0 for _, _, memory in MODELS.values())


def test_a_cpu_is_leased_core_by_core() -> None:
    assert (a_cpu(6).capacity_milli, a_device().capacity_milli) == (6000, 1000)


def test_a_device_shows_its_model_and_that_it_is_simulated() -> None:
    assert str(a_device()) == "nvidia/a100-sxm4-40gb"
    assert str(a_device(partition="1g.10gb", simulated=True)) == "nvidia/a100-sxm4-40gb mig-1g.10gb (simulated)"


@pytest.mark.parametrize(
    "fields",
    [{"model": "A100"}, {"model": "a 100"}, {"index": -1}, {"id": ""}, {"vendor": ""}, {"colour": "red"}],
)
def test_an_impossible_device_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Device.model_validate(a_device().model_dump() | fields)


def test_a_worker_survives_json_and_has_no_device_twice() -> None:
    worker = a_worker(labels={"zone": "eu"})
    assert type(worker).model_validate_json(worker.model_dump_json()) == worker
    with pytest.raises(ValidationError, match="two devices of worker 'w' have the id 'GPU-0'"):
        a_worker("w", (a_device(), a_device()))


def test_the_cpu_of_a_worker_is_found() -> None:
    assert a_worker().cpu == a_cpu()
    assert a_worker(devices=(a_device(),)).cpu is None


@pytest.mark.parametrize("model", sorted(name for name, (_, kind, _) in MODELS.items() if kind != "fpga"))
def test_every_well_known_training_accelerator_has_a_data_sheet(model):
    speed = data_sheet_speed(f"{MODELS[model][0]}/{model}")
    assert speed is not None
    assert 0.05 < speed < 50


@pytest.mark.parametrize(
    ("slower", "faster"),
    [("k80", "p100"), ("p100", "v100"), ("t4", "v100"), ("v100", "a100"), ("a100", "h100"), ("h100", "h200")],
)
def test_generations_are_in_order(slower, faster):
    assert data_sheet_speed(f"nvidia/{slower}") < data_sheet_speed(f"nvidia/{faster}")


@pytest.mark.parametrize(
    ("model", "sheet"),
    [
        ("nvidia/tesla-v100-sxm2-16gb", "nvidia/v100"),
        ("nvidia/geforce-rtx-4090", "nvidia/rtx-4090"),
        ("nvidia/a100-sxm4-80gb", "nvidia/a100-80gb"),
        ("nvidia/a100-sxm4-40gb", "nvidia/a100"),
        ("nvidia/h100-pcie", "nvidia/h100-pcie"),
        ("ascend/910b3", "ascend/910b"),
        ("amd/instinct-mi300x-oam", "amd/mi300x"),
    ],
)
def test_a_probed_model_matches_a_data_sheet_by_its_words(model, sheet):
    assert data_sheet_speed(model) == data_sheet_speed(sheet)


def test_a_name_with_more_words_wins():
    assert data_sheet_speed("nvidia/h100-pcie") < data_sheet_speed("nvidia/h100-sxm5")


def test_the_speed_of_a_mig_instance_is_proportional_to_its_slices():
    whole = data_sheet_speed("nvidia/a100-sxm4-40gb")
    assert math.isclose(data_sheet_speed("nvidia/a100-sxm4-40gb/3g.20gb"), whole * 3 / 7)


@pytest.mark.parametrize("device_class", ["", "/", "nvidia", "nvidia/", "generic/x86-64", "amd/a100", "acme/x1/y/z"])
def test_a_model_without_a_data_sheet_has_no_speed(device_class):
    assert data_sheet_speed(device_class) is None


def test_data_sheets_have_positive_figures():
    assert all(min(figures) > 0 for models in DATA_SHEETS.values() for figures in models.values())
