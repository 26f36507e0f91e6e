import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hetero_airflow.discovery.nvidia import to_model
from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.model.device import Device, matches_model, model_tokens
from hetero_airflow.model.devices.memory import INTEGRATED_KEY, SET_ASIDE_KEY, is_integrated, with_host_memory
from hetero_airflow.model.devices.names import (
    KINDS,
    MODELS,
    VARIANTS,
    VENDORS,
    known_products,
    other_names,
    parse_device,
)
from hetero_airflow.model.devices.speeds import DATA_SHEETS, data_sheet_speed
from hetero_airflow.model.request import DeviceRequest
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


@pytest.mark.parametrize(
    ("name", "memory_gib", "requested", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100-SXM", True),
        ("NVIDIA H100 80GB HBM3", 79.6, "h100-sxm5", True),
        ("NVIDIA H100 PCIe", 79.6, "H100-SXM", False),
        ("NVIDIA A100 80GB PCIe", 80, "A100-80GB", True),
        ("NVIDIA A100-SXM4-40GB", 40, "A100-80GB", False),
        ("NVIDIA A100-SXM4-40GB", 40, "a100_sxm", True),
        ("NVIDIA A100-SXM-64GB", 63.4, "a100", True),
        ("NVIDIA GeForce RTX 4090", 24, "RTX4090", True),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, "rtx-4090", False),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, "nvidia/rtx-4090-laptop", True),
        ("NVIDIA GeForce RTX 4090 D", 24, "rtx-4090", False),
        ("NVIDIA GeForce RTX 4090 D", 24, "rtx-4090d", True),
        ("NVIDIA GeForce RTX 3090 Ti", 24, "rtx-3090", False),
        ("NVIDIA GeForce RTX 3090 Ti", 24, "rtx3090-ti", True),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 16, "nvidia/rtx-4070-ti", False),
        ("NVIDIA GeForce RTX 2080 Super with Max-Q Design", 8, "nvidia/rtx-2080-super", False),
        ("NVIDIA RTX 6000 Ada Generation", 48, "RTX6000-Ada", True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 95.6, "RTX6000-Ada", False),
        ("Quadro RTX 6000", 24, "rtx-6000", True),
        ("NVIDIA RTX A6000", 48, "RTXA6000", True),
        ("Tesla V100-DGXS-32GB", 32, "V100-32GB", True),
        ("NVIDIA GH200 144G HBM3e", 143, "GH200", True),
        ("NVIDIA B200", 179, "GB200", False),
        ("NVIDIA H20-3e", 141, "H20", True),
        ("NVIDIA H200 NVL", 140.4, "H200-SXM", False),
        ("NVIDIA A40-8Q", 8, "a40", False),
        ("NVIDIA A40-8Q", 8, "nvidia/a40-8q", True),
        ("GRID A100-4-20C", 20, "a100", False),
        ("NVIDIA L40S", 48, "L40", False),
        ("NVIDIA TITAN RTX", 24, "titan-rtx", True),
        ("NVIDIA DGX Display", 4, "gpu", False),
        ("NVIDIA DGX Display", 4, "nvidia/dgx-display", True),
        ("NVIDIA T400 4GB", 4, "t4", False),
    ],
)
def test_what_people_write_meets_what_drivers_print_and_no_smaller_sibling(name, memory_gib, requested, expected):
    device = a_device(model=to_model(name)).model_copy(update={"memory_bytes": int(memory_gib * 2**30)})
    alternative = DeviceRequest.parse(requested).alternatives[0]
    assert check_worker(alternative, a_worker(devices=(device,)))[0] is expected


@pytest.mark.parametrize(
    ("vendor", "model", "requested"),
    [
        ("ascend", "910b2c", "910b"), ("ascend", "910b2c", "ascend910b2"), ("ascend", "910premiuma", "910a"),
        ("ascend", "910b4-1", "Ascend910B4"), ("amd", "instinct-mi300x-oam", "MI300X"), ("google", "v7x", "v7x"),
        ("habana", "gaudi2", "Gaudi2"), ("intel", "arc-b580", "arc-b580"),
        ("intel", "pac-d5005-stratix-10", "stratix-10"),
    ],
)  # fmt: skip
def test_a_bare_model_has_the_vendor_that_makes_it(vendor, model, requested):
    fields = parse_device(requested)
    assert (fields["vendor"], matches_model(fields["model"], model_tokens(model))) == (vendor, True)


@pytest.mark.parametrize("product", known_products(), ids=lambda product: f"{product.vendor}/{product.model}")
def test_each_known_product_is_requested_by_its_name_and_by_its_other_names(product):
    for name in (product.model, *(name for name in other_names(product) if name in MODELS)):
        assert parse_device(f"{product.vendor}/{name}:2") == {
            "vendor": product.vendor, "kind": product.kind, "model": name, "count": 2,
        }  # fmt: skip
        assert parse_device(name)["vendor"] == product.vendor
        assert matches_model(name, product.tokens)


@given(st.sampled_from(known_products()), st.sampled_from([*sorted(VARIANTS), "8q", "40c"]))
def test_a_variant_of_a_known_product_matches_only_its_own_name(product, variant):
    tokens = model_tokens(f"{product.model}-{variant}")
    if variant not in product.model.split("-"):
        assert not matches_model(product.model, tokens)
    assert matches_model(f"{product.model}-{variant}", tokens)


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


@pytest.mark.parametrize("unknown", ["0", "null"])
def test_memory_without_a_figure_is_unknown_also_in_rows_of_earlier_versions(unknown: str) -> None:
    row = a_device(memory=None).model_dump_json(exclude_defaults=True).replace("null", unknown)
    assert Device.model_validate_json(row) == a_device(memory=None)
    cpu = a_cpu().model_copy(update={"memory_bytes": 0})
    assert Device.model_validate_json(cpu.model_dump_json()).memory_bytes == 0, "other pods have all of it"


def gpu_of(vendor: str, model: str, **fields: Any) -> Device:
    return a_device(model, model, None, vendor=vendor, **({"capability": None} | fields))


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (gpu_of("nvidia", "gb10"), True),
        (gpu_of("nvidia", "orin-nvgpu"), True),
        (gpu_of("nvidia", "thor"), True),
        (gpu_of("nvidia", "gb200"), False),
        (gpu_of("nvidia", "gh200-480gb"), False),
        (gpu_of("amd", "radeon-graphics", capability="gfx1036"), True),
        (gpu_of("amd", "radeon-rx-6500-xt", capability="gfx1034"), False),
        (gpu_of("amd", "instinct-mi300a", capability="gfx942"), False),
        (gpu_of("acme", "x1", details={INTEGRATED_KEY: True}), True),
        (gpu_of("acme", "x1", kind="npu", details={INTEGRATED_KEY: True}), False),
    ],
)
def test_a_gpu_without_memory_of_its_own_has_the_hosts(device: Device, expected: bool) -> None:
    assert is_integrated(device) is expected
    memory = {gpu.id: gpu.memory_bytes for gpu in with_host_memory((device, a_device("card", memory=None), a_cpu()))}
    assert memory == {device.id: 64 * 2**30 if expected else None, "card": None, "cpu": 64 * 2**30}
    assert with_host_memory((device,)) == (device,)


def test_what_the_firmware_sets_aside_counts_if_it_is_more_and_a_part_has_no_memory_of_the_host() -> None:
    sizes = [gpu_of("amd", "x", capability="gfx1151", details={SET_ASIDE_KEY: size}) for size in (2**29, 96 * 2**30)]
    part = gpu_of("nvidia", "thor", partition="1g.10gb")
    gib = [(gpu.memory_bytes or 0) >> 30 for gpu in with_host_memory((*sizes, part, a_cpu()))]
    assert gib == [64, 96, 0, 64]


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
