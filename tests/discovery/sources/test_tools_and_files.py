import os
from pathlib import Path

import pytest

from hetero_airflow.discovery.sources.tools_and_files import find_tool, read_pci, read_text, run_tool
from hetero_airflow.errors import ProbeError


def test_a_tool_is_found_by_its_absolute_path(put_tool, tmp_path, monkeypatch):
    tool = put_tool("vendor-smi", "echo fine")
    assert find_tool("vendor-smi") == str(tool)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_tool("vendor-smi", "/elsewhere", str(tool.parent)) == str(tool)
    assert find_tool("vendor-smi") is None


def test_the_result_is_the_tools_standard_output(put_tool):
    tool = put_tool("vendor-smi", 'echo "warned" >&2; echo "$@"')
    assert run_tool(str(tool), "info", "-m; echo no shell") == "info -m; echo no shell\n"


def test_a_hung_tool_is_killed_even_if_its_child_keeps_the_pipe(put_tool):
    tool = put_tool("vendor-smi", "sleep 3 & wait")
    with pytest.raises(ProbeError) as caught:
        run_tool(str(tool), "info", timeout_s=0.2)
    assert (caught.value.asked, caught.value.found) == ("vendor-smi info", "no end after 0.2 s")


def test_a_tool_that_closes_its_output_and_stays_is_killed(put_tool):
    tool = put_tool("vendor-smi", "exec >&-; exec sleep 3")
    with pytest.raises(ProbeError, match=r"no end after 0\.2 s"):
        run_tool(str(tool), timeout_s=0.2)


def test_a_tool_with_too_much_output_is_killed(put_tool):
    tool = put_tool("vendor-smi", "exec yes")
    with pytest.raises(ProbeError) as caught:
        run_tool(str(tool))
    assert caught.value.found == "more than 8388608 bytes"


def test_a_tool_that_is_no_program_is_an_error(tmp_path):
    (tmp_path / "tool").write_bytes(b"\x00\x01")
    (tmp_path / "tool").chmod(0o755)
    with pytest.raises(ProbeError, match="can't be started"):
        run_tool(str(tmp_path / "tool"))


def test_bytes_that_are_no_text_are_replaced(put_tool, tmp_path):
    tool = put_tool("vendor-smi", r"printf 'a\377b'")
    assert run_tool(str(tool)) == "a\ufffdb"
    (tmp_path / "file").write_bytes(b"\xffx\n")
    assert read_text(tmp_path / "file") == "\ufffdx"


def test_files_are_read_up_to_a_limit(tmp_path):
    (tmp_path / "file").write_text("x" * 100)
    assert read_text(tmp_path / "file", limit=10) == "x" * 10
    assert read_text(tmp_path / "missing") is None
    assert read_text(tmp_path) is None


def test_pci_devices_of_other_vendors_are_ignored(fixture_tree):
    root = fixture_tree("xilinx/alveo-u250.json")
    assert list(read_pci(root, frozenset({"0x1ae0"}))) == []
    assert [device["driver"] for device in read_pci(root, frozenset({"0x10ee"}))] == [None, "xocl", None]


def test_the_pci_devices_of_this_host_are_read():
    vendors = {read_text(path) or "" for path in Path("/sys/bus/pci/devices").glob("*/vendor")}
    devices = list(read_pci(Path("/"), frozenset(vendors)))
    assert len(devices) == (len(os.listdir("/sys/bus/pci/devices")) if os.path.isdir("/sys/bus/pci/devices") else 0)
