from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.discovery import ascend
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.errors import ProbeError
from hetero_airflow.model.device import SICK_KEY, Device, Telemetry, matches_model, model_tokens

MIB = 1 << 20


def npu(**fields):
    return Device(**{"vendor": "ascend", "kind": "npu"} | fields)


def test_two_910b4(fixture_text):
    result = ascend.parse(
        fixture_text("ascend/npu-smi-info-910b4.txt"), fixture_text("ascend/npu-smi-info-m-910b4.txt")
    )
    common = {"model": "910b4-1", "memory_bytes": 65536 * MIB, "driver": "25.2.2"}
    first, second = "0000:0e:00.0", "0000:0f:00.0"
    assert result == ProbeResult(
        devices=(
            npu(id=first, index=0, pci=first, details={"npu": 0, "chip": 0, "node": "/dev/davinci0"}, **common),
            npu(id=second, index=1, pci=second, details={"npu": 1, "chip": 0, "node": "/dev/davinci1"}, **common),
        ),
        telemetry=(
            Telemetry(device_id=first, memory_free_bytes=3711 * MIB, utilization=0, temperature_c=40, power_w=78.2),
            Telemetry(device_id=second, memory_free_bytes=3711 * MIB, utilization=0, temperature_c=41, power_w=77.9),
        ),
        users={first: (19334,), second: (19341,)},
    )
    assert matches_model("910b", model_tokens(result.devices[0].model))


def test_two_chips_on_a_card_are_two_devices_and_a_cut_table_loses_only_its_end(fixture_text):
    result = ascend.parse(fixture_text("ascend/npu-smi-info-910c.txt"))
    common = {"model": "910c", "memory_bytes": 65536 * MIB, "driver": "24.1.rc3"}
    assert result.devices == (
        npu(
            id="0000:9d:00.0",
            index=0,
            pci="0000:9d:00.0",
            details={"npu": 0, "chip": 0, "node": "/dev/davinci0"},
            **common,
        ),
        npu(
            id="0000:9f:00.0",
            index=1,
            pci="0000:9f:00.0",
            details={"npu": 0, "chip": 1, "node": "/dev/davinci1"},
            **common,
        ),
    )
    assert [reading.power_w for reading in result.telemetry] == [178.8, None]


def test_chips_of_a_310p_share_an_address_and_have_no_hbm(fixture_text):
    result = ascend.parse(fixture_text("ascend/npu-smi-info-310p3.txt"))
    common = {"model": "310p3", "pci": "0000:01:00.0", "driver": "25.2.0"}
    assert result.devices == (
        npu(
            id="npu-2-0",
            index=0,
            memory_bytes=44280 * MIB,
            details={"npu": 2, "chip": 0, "node": "/dev/davinci0"},
            **common,
        ),
        npu(
            id="npu-2-1",
            index=1,
            memory_bytes=43693 * MIB,
            details={"npu": 2, "chip": 1, "node": "/dev/davinci1"},
            **common,
        ),
    )
    assert [reading.memory_free_bytes for reading in result.telemetry] == [42751 * MIB, 42281 * MIB]


def test_an_empty_hbm_column_does_not_hide_other_memory(fixture_text):
    text = fixture_text("ascend/npu-smi-info-310p3.txt").replace("1529 / 44280        ", "1529 / 44280   0 / 0")
    assert ascend.parse(text).devices[0].memory_bytes == 44280 * MIB


def test_the_logic_id_of_the_mapping_is_the_index(fixture_text):
    mapping = (
        "NPU ID      Chip ID     Chip Logic ID     Chip Phy-ID    Chip Name\n"
        "0           0           4                 0              Ascend 910B4\n"
        "1           0           7                 1              Ascend 910B4\n"
    )
    result = ascend.parse(fixture_text("ascend/npu-smi-info-910b4.txt"), mapping)
    assert [device.index for device in result.devices] == [4, 7]


@pytest.mark.parametrize(("health", "is_leasable"), [("Warning", True), ("Alarm", False), ("Critical", False)])
def test_an_unhealthy_chip_is_reported(fixture_text, health, is_leasable):
    text = fixture_text("ascend/npu-smi-info-910b4.txt").replace("| OK     ", f"| {health:7}", 1)
    devices = ascend.parse(text).devices
    assert (devices[0].leasable, devices[0].problem) == (is_leasable, f'npu-smi reports the health "{health}".')
    assert (devices[1].leasable, devices[1].problem) == (True, None)
    assert [device.details.get(SICK_KEY, False) for device in devices[:2]] == [not is_leasable, False]


def test_the_tool_is_asked_for_both_tables(fixture_text, tmp_path, put_tool):
    (tmp_path / "info").write_text(fixture_text("ascend/npu-smi-info-910b4.txt"))
    put_tool("npu-smi", f'if [ "$2" = -m ]; then echo unsupported; exit 1; fi; exec cat {tmp_path}/$1')
    assert [device.id for device in ascend.probe().devices] == ["0000:0e:00.0", "0000:0f:00.0"]


def test_a_tool_that_fails_is_an_error_that_quotes_it(put_tool):
    message = "dcmi model initialized failed, because the device is used. ret is -8020"
    put_tool("npu-smi", f'echo "{message}"; exit 1')
    with pytest.raises(ProbeError) as caught:
        ascend.probe()
    assert caught.value.found == f"exit code 1 and {message!r}"


def test_output_without_a_table_is_an_error():
    with pytest.raises(ProbeError) as caught:
        ascend.parse("dcmi module initialize failed. ret is -8005\n")
    assert caught.value.found == "no table of NPUs but 'dcmi module initialize failed. ret is -8005'"


def test_no_tool_is_an_empty_result(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ascend, "NODES", f"{tmp_path}/davinci0")
    assert ascend.probe() == ProbeResult()
    (tmp_path / "davinci0").touch()
    line = "exists, but npu-smi does not, so its devices can't be read; mount it and /usr/local/Ascend/driver."
    assert ascend.probe() == ProbeResult(problems=(f"{tmp_path}/davinci0 {line}",))


rows = st.lists(st.text(alphabet=st.sampled_from("|+= 0129ABab:./-\n"), max_size=60), max_size=8)


@given(rows, st.text(max_size=200))
def test_every_unreadable_text_is_a_probe_error(lines, mapping):
    header = "| NPU   Name | Health | Power(W) Temp(C) |\n"
    assert isinstance(ascend.parse(header + "\n".join(lines), mapping), ProbeResult)
    with suppress(ProbeError):
        assert isinstance(ascend.parse("\n".join(lines), mapping), ProbeResult)


@given(st.data())
def test_a_damaged_table_never_stops_the_parser(fixture_text, data):
    text = fixture_text("ascend/npu-smi-info-910c.txt")
    start = data.draw(st.integers(0, len(text)))
    damaged = text[:start] + data.draw(st.text(max_size=5)) + text[start + data.draw(st.integers(0, 40)) :]
    with suppress(ProbeError):
        assert len(ascend.parse(damaged).devices) <= 2
