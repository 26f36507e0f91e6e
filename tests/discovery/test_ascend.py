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


def test_two_chips_on_a_card_are_two_devices_and_a_cut_table_makes_the_users_unknown(fixture_text):
    result = ascend.parse(fixture_text("ascend/npu-smi-info-910c.txt"))
    problem = result.devices[0].problem
    common = {"model": "910c", "memory_bytes": 65536 * MIB, "driver": "24.1.rc3", "leasable": False, "problem": problem}
    lost, unknown = result.problems
    assert lost.startswith(
        "A row of npu-smi is not understood, so an NPU may be missing: '1     Ascend910 | OK | 185.4 "
    )
    assert unknown.startswith("npu-smi's table of processes is not understood (no such table, but the row '1     Asc")
    assert problem == unknown[:500]
    assert result.users == {}
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
    text = text.replace("Memory-Usage(MB)               ", "Memory-Usage(MB)  HBM-Usage(MB)")
    assert ascend.parse(text).devices[0].memory_bytes == 44280 * MIB


@pytest.mark.parametrize(("first", "second", "indexes"), [(4, 7, [0, 1]), (1, 0, [1, 0])])
def test_the_index_counts_the_chips_in_the_order_of_their_logic_ids(fixture_text, first, second, indexes):
    mapping = (
        "NPU ID      Slot ID     Chip ID     Chip Logic ID     Chip Phy-ID    Chip Name\n"
        f"0           1           0           {first}                 0              Ascend 910B4\n"
        f"1           2           0           {second}                 1              Ascend 910B4\n"
        "1           2           1           -                 -              Mcu\n"
    )
    result = ascend.parse(fixture_text("ascend/npu-smi-info-910b4.txt"), mapping)
    assert [device.index for device in result.devices] == indexes


def test_the_users_in_the_five_columns_of_npu_smi_26_are_found(fixture_text):
    result = ascend.parse(fixture_text("ascend/npu-smi-info-26.txt"))
    assert [(d.id, d.model, d.index, d.details["node"], d.leasable) for d in result.devices] == [
        ("0000:81:00.0", "910c", 0, "/dev/davinci14", True),
        ("0000:83:00.0", "910c", 1, "/dev/davinci15", True),
    ]
    assert result.users == {"0000:81:00.0": (692318,), "0000:83:00.0": (692318,)}
    assert result.problems == ()


@pytest.mark.parametrize("name", ["910b4", "26", "910b2c"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| Process id   ", "| PID          "),
        ("| Process id   ", "| Process id    Process id"),
        ("| NPU     Chip  ", "| Chip    Card  "),
        ("| python3", "| python3 | 1"),
        ("| VLLMWorker_TP", "| 1 | VLLMWorker_TP"),
        ("| 1       0     ", "| 9       0     "),
        ("| 7       1     ", "| 7       ?     "),
        ("| 0       0                 | 124528", "| No process in NPU 0"),
    ],
)
def test_a_table_of_processes_that_is_not_understood_is_not_unused(fixture_text, name, old, new):
    text = fixture_text(f"ascend/npu-smi-info-{name}.txt")
    result = ascend.parse(text.replace(old, new))
    if old not in text:
        assert all(device.leasable for device in result.devices)
        return
    assert result.users == {}
    assert [device.leasable for device in result.devices] == [False, False]
    assert "so who uses the NPUs is unknown" in result.problems[-1]


def test_an_npu_without_a_pci_address_is_found(fixture_text):
    text = fixture_text("ascend/npu-smi-info-310b4.txt")
    device = npu(
        id="npu-0-0", model="310b4", index=0, memory_bytes=3513 * MIB, driver="23.0.rc3",
        details={"npu": 0, "chip": 0, "node": "/dev/davinci0"},
    )  # fmt: skip
    assert ascend.parse(text).devices == (device,)
    (alarmed,) = ascend.parse(text.replace("OK   ", "Alarm")).devices
    assert (alarmed.leasable, alarmed.problem) == (False, 'npu-smi reports the health "Alarm".')


def test_one_visible_die_of_a_910c_is_a_910c(fixture_text):
    lines = fixture_text("ascend/npu-smi-info-26.txt").splitlines()
    (device,) = ascend.parse("\n".join([*lines[:8], lines[5]])).devices
    assert (device.model, device.index, device.leasable) == ("910c", 0, True)


def test_a_910b2c_is_found_and_a_chip_without_a_process_is_unused(fixture_text):
    result = ascend.parse(fixture_text("ascend/npu-smi-info-910b2c.txt"))
    assert [device.model for device in result.devices] == ["910b2c", "910b2c"]
    assert result.users == {"0000:5a:00.0": (124528,), "0000:19:00.0": ()}


def test_nodes_of_chips_that_npu_smi_does_not_show_are_a_problem(fixture_text, tmp_path, put_tool, monkeypatch):
    (tmp_path / "info").write_text(fixture_text("ascend/npu-smi-info-310b4.txt"))
    put_tool("npu-smi", f'[ "$2" = -m ] && exit 1; exec cat {tmp_path}/$1')
    monkeypatch.setattr(ascend, "NODES", f"{tmp_path}/davinci[0-9]*")
    for number in (0, 1):
        (tmp_path / f"davinci{number}").touch()
    result = ascend.probe()
    assert result.problems[0].startswith(f"2 nodes {tmp_path}/davinci[0-9]* exist, but npu-smi shows 1 NPUs; ")
    assert "node" not in result.devices[0].details  # /dev/davinci0 does not exist on this host


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
