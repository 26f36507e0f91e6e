"""What a device computes fast follows from what its probe reports; what no rule knows is unknown."""

import pytest

from hetero_airflow.model.devices.features import ARCHITECTURES, FLAGS_KEY, accelerator_features, device_features
from hetero_airflow.testing import a_cpu, a_device


@pytest.mark.parametrize(
    ("vendor", "key", "trained", "fast"),
    [
        ("nvidia", "6.1", "fp32", ""),  # P40
        ("nvidia", "7.0", "fp16", "fp16"),  # V100
        ("nvidia", "7.5", "fp16", "fp16 int8 int4"),  # T4
        ("nvidia", "8.0", "bf16", "tf32 bf16 fp16 int8 int4"),  # A100
        ("nvidia", "8.9", "bf16", "tf32 bf16 fp16 fp8 int8 int4"),  # L4
        ("nvidia", "9.0", "bf16", "tf32 bf16 fp16 fp8 int8"),  # H100, GH200
        ("nvidia", "10.0", "bf16", "tf32 bf16 fp16 fp8 fp4 int8"),  # B200
        ("nvidia", "12.1", "bf16", "tf32 bf16 fp16 fp8 fp4 int8"),  # GB10
        ("amd", "gfx906", "fp32", ""),  # MI50
        ("amd", "gfx90a", "bf16", "bf16 fp16 int8"),  # MI250X
        ("amd", "gfx942", "bf16", "tf32 bf16 fp16 fp8 int8"),  # MI300X
        ("amd", "gfx950", "bf16", "bf16 fp16 fp8 fp4 int8"),  # MI355X
        ("amd", "gfx1030", "fp32", ""),  # RX 6900 XT
        ("amd", "gfx1100", "bf16", "bf16 fp16 int8 int4"),  # RX 7900 XTX
        ("amd", "gfx1201", "bf16", "bf16 fp16 fp8 int8 int4"),  # RX 9070 XT
        ("ascend", "910proa", "fp16", "fp16 int8"),
        ("ascend", "310p3", "fp16", "fp16 int8 int4"),
        ("ascend", "910b4-1", "bf16", "bf16 fp16 int8 int4"),
        ("ascend", "910c", "bf16", "bf16 fp16 int8 int4"),
        ("google", "v3", "bf16", "bf16"),
        ("google", "v5e", "bf16", "bf16 int8 int4"),
        ("google", "v7x", "bf16", "bf16 fp8"),
    ],
)
def test_an_accelerator_has_the_types_of_its_architecture(vendor, key, trained, fast):
    features = accelerator_features(vendor, key)
    assert (features.training_dtype, " ".join(features.dtypes), features.unknown) == (trained, fast, None)
    assert bool(features.matrix_units) == bool(fast)


def test_a_gtx_16_has_no_tensor_cores_although_its_compute_capability_is_that_of_a_t4():
    gtx = device_features(a_device(model="geforce-gtx-1660-ti", capability="7.5"))
    rtx = device_features(a_device(model="geforce-rtx-2080-ti", capability="7.5"))
    pascal = device_features(a_device(model="geforce-gtx-1080-ti", capability="6.1"))
    assert (gtx.training_dtype, rtx.training_dtype, pascal.training_dtype) == ("fp32", "fp16", "fp32")
    assert pascal.unknown is None


@pytest.mark.parametrize(
    ("vendor", "key", "why"),
    [
        ("nvidia", "13.0", "no rule for its compute capability 13.0"),
        ("nvidia", "x", "no rule for its compute capability x"),
        ("nvidia", None, "its probe reports no compute capability"),
        ("amd", "gfx940", "no rule for its target gfx940"),  # an MI300 before its release
        ("amd", "gfx1300", "no rule for its target gfx1300"),
        ("ascend", "910b", "no rule for its series 910b"),
        ("google", "v9", "no rule for its generation v9"),
        ("rebellions", "atom", "no rules for the vendor rebellions"),
    ],
)
def test_what_no_rule_knows_is_unknown_and_trains_in_fp32(vendor, key, why):
    features = accelerator_features(vendor, key)
    assert (features.unknown, features.training_dtype, features.dtypes) == (why, "fp32", ())
    assert (features.matrix_units, features.compiler, features.collectives) == (None, "unknown", "unknown")


def test_fp8_is_shown_and_never_chosen():
    shown = [rule for rule in ARCHITECTURES if "fp8" in rule.dtypes]
    keys = {"nvidia": "9.0", "amd": "gfx942", "google": "v7x"}
    assert {rule.vendor for rule in shown} == set(keys)
    assert {accelerator_features(*each).training_dtype for each in keys.items()} == {"bf16"}


@pytest.mark.parametrize(
    ("flags", "fast", "trained", "units"),
    [
        ("", (), "fp32", None),
        ("avx512_vnni", ("int8",), "fp32", None),  # Cascade Lake
        ("avx512_bf16 avx512_vnni", ("bf16", "int8"), "bf16", None),  # Zen 4
        ("avx512_bf16 amx_bf16 avx512_vnni amx_int8", ("bf16", "int8"), "bf16", "AMX"),  # Sapphire Rapids
        ("bf16 i8mm", ("bf16", "int8"), "fp32", None),  # Graviton 3
    ],
)
def test_a_cpu_has_the_types_of_its_flags(flags, fast, trained, units):
    features = device_features(a_cpu(details={FLAGS_KEY: flags}))
    assert (features.dtypes, features.training_dtype, features.matrix_units) == (fast, trained, units)


def test_a_cpu_whose_kernel_shows_no_flags_is_unknown():
    assert device_features(a_cpu()).unknown == "its kernel shows no flags"
