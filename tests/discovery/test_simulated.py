import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import simulated
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.errors import ProbeError
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.settings import SIMULATED_DEVICES_VARIABLE

GIB = 1 << 30


def test_devices_are_marked_and_have_the_memory_of_the_catalogue(monkeypatch):
    monkeypatch.setenv(SIMULATED_DEVICES_VARIABLE, "nvidia/h100-80gb:2, ascend/910b")

    def device(vendor, kind, model, number, gib):
        return Device(
            id=f"simulated-{vendor}-{model}-{number}",
            vendor=vendor,
            kind=kind,
            model=model,
            index=number,
            memory_bytes=gib * GIB,
            simulated=True,
        )

    devices = (
        device("nvidia", "gpu", "h100-80gb", 0, 80),
        device("nvidia", "gpu", "h100-80gb", 1, 80),
        device("ascend", "npu", "910b", 0, 64),
    )
    telemetry = tuple(Telemetry(device_id=d.id, memory_free_bytes=d.memory_bytes) for d in devices)
    assert simulated.probe() == ProbeResult(devices, telemetry)


def test_a_mig_instance_can_be_simulated():
    (device,) = simulated.parse("mig-1g.10gb").devices
    assert (device.id, device.partition, device.memory_bytes) == (
        "simulated-nvidia-mig-1g.10gb-0", "1g.10gb", 10 * GIB,
    )  # fmt: skip


def test_memory_comes_from_the_name_or_the_nearest_model_or_a_default():
    sizes = {"nvidia/a100-sxm4-80gb": 80, "ascend/910b3": 64, "nvidia/tesla-v100": 32, "acme/x1": 16}
    assert {text: simulated.parse(text).devices[0].memory_bytes // GIB for text in sizes} == sizes


def test_a_model_named_twice_continues_its_numbers():
    assert [d.id for d in simulated.parse("a100:1,a100:1").devices] == [
        "simulated-nvidia-a100-0", "simulated-nvidia-a100-1",
    ]  # fmt: skip


def test_an_empty_text_is_an_empty_result(monkeypatch):
    monkeypatch.delenv(SIMULATED_DEVICES_VARIABLE, raising=False)
    assert simulated.probe() == ProbeResult()
    assert simulated.parse(" , ") == ProbeResult()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:2", "no model of an accelerator in 'gpu:2'"),
        ("nvidia:2", "no model of an accelerator in 'nvidia:2'"),
        ("cpu:8", "no model of an accelerator in 'cpu:8'"),
        ("nvidia/h100:0.5", "a share in 'nvidia/h100:0.5'"),
        ("xyz9:1", "an unknown device in 'xyz9:1'"),
        ("mig--x", "no name of a model in 'mig--x'"),
        ("nvidia/h100:", "the quantity '' in 'nvidia/h100:'"),
        ("hundred", "an unknown device in 'hundred'"),
        ("nvidia/h100:1024,a100:1", "1025 devices or more"),
        ("a" * 9000, "9000 characters"),
    ],
)
def test_an_unreadable_text_is_an_error_that_names_the_part_and_the_reason(text, found):
    with pytest.raises(ProbeError) as caught:
        simulated.parse(text)
    assert caught.value.found == found
    assert caught.value.asked.startswith(f"{SIMULATED_DEVICES_VARIABLE}='")
    assert caught.value.remedy


@given(st.text(alphabet="abmignv0123456789/:.,-+ ", max_size=60))
def test_every_unreadable_text_is_a_probe_error(text):
    try:
        devices = simulated.parse(text).devices
    except ProbeError:
        return
    assert len({device.id for device in devices}) == len(devices) <= simulated.MAX_DEVICES
