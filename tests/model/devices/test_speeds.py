from __future__ import annotations

import math

import pytest

from hetero_airflow.model.devices.names import MODELS
from hetero_airflow.model.devices.speeds import DATA_SHEETS, data_sheet_speed


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
