"""What probes read: values, tools and files, control groups, and versions of software."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from pydantic import TypeAdapter

from hetero_airflow.discovery.cpu import MemoryLimit, cpu_quota, memory_limits
from hetero_airflow.discovery.sources import values
from hetero_airflow.discovery.sources.software_versions import runtime_versions
from hetero_airflow.discovery.sources.tools_and_files import find_tool, read_pci, read_text, run_tool
from hetero_airflow.errors import ProbeError
from hetero_airflow.model.device import DeviceWord
from hetero_airflow.units import MAX_BYTES

anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers()),
    st.dictionaries(st.just("value"), st.one_of(st.text(), st.integers(), st.floats())),
)  # fmt: skip


@given(anything)
def test_every_word_is_valid(value):
    word = values.to_word(value)
    assert TypeAdapter(DeviceWord).validate_python(word) == word


@given(st.text(min_size=100, max_size=1000))
def test_texts_are_bounded_printable_and_can_be_written(value):
    text = values.to_text(value, limit=50)
    assert text is None or (0 < len(text) <= 50 and text.isprintable() and text.encode())


@given(anything)
def test_numbers_stay_in_their_range(value):
    number, size, share = values.to_number(value), values.to_bytes(value, 1 << 20), values.to_share(value)
    count = values.to_count(value, limit=10)
    assert number is None or number - number == 0
    assert size is None or 0 <= size <= MAX_BYTES
    assert share is None or 0 <= share <= 1
    assert count is None or 0 <= count <= 10


@given(anything)
def test_every_version_is_a_public_pep_440_version(value):
    text = values.to_version(value)
    assert text is None or Version(text).local is None


@given(st.text(alphabet="0123456789,- \n"))
def test_kernel_lists_give_bounded_ids(value):
    ids = values.to_ids(value, limit=100)
    assert len(ids) <= 100
    assert all(0 <= number < 100 for number in ids)


def test_versions_that_tools_write_become_comparable():
    written = {
        "2.9.0+cu128": "2.9.0",
        "9.2.0-beta.2": "9.2.0-beta.2",
        "8.0.T6": "8.0",
        "26.0.rc2": "26.0.rc2",
        "6.4.1-83": "6.4.1",
        "Linuxversion6.14.0-24-generic(buildd@lcy02-amd64-010)": "6.14.0",
        "1.2.3.dev4": "1.2.3.dev4",
        "580.126.09": "580.126.09",
        "7": "7",
        "kernel 7": None,
        "no version": None,
        "": None,
    }
    assert {text: values.to_version(text) for text in written} == written


def test_marks_of_makers_are_no_part_of_a_word():
    assert values.to_word("Xeon(R) Platinum 8480+") == "xeon-platinum-8480+"
    assert values.to_word("Alveo™ U280") == "alveo-u280"


def test_a_pci_domain_of_eight_digits_is_shortened_only_where_nothing_is_lost():
    assert values.to_pci("00000001:3B:00.1") == "0001:3b:00.1"
    assert values.to_pci("03F8CFDD:00:00.0") == "3f8cfdd:00:00.0"
    assert values.to_pci("3b:00.0") == "0000:3b:00.0"


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


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def tree(tmp_path):
    def make(files):
        for path, text in files.items():
            put(tmp_path / path, text)
        return tmp_path

    return make


def test_v2_limits_of_all_groups_above_are_read(tree):
    root = tree({
        "proc/self/cgroup": "0::/system.slice/airflow.service\n",
        "sys/fs/cgroup/system.slice/memory.max": "max\n",
        "sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/system.slice/airflow.service/memory.max": "8589934592\n",
        "sys/fs/cgroup/system.slice/airflow.service/memory.current": "3000000000\n",
        "sys/fs/cgroup/system.slice/airflow.service/memory.stat": "anon 1\ninactive_file 1000000000\n",
        "sys/fs/cgroup/system.slice/airflow.service/cpu.max": "max 100000\n",
    })  # fmt: skip
    assert memory_limits(root) == [MemoryLimit(8589934592, 2000000000)]
    assert cpu_quota(root) == 2.0


def test_v1_in_a_container_sees_only_the_root_of_its_own_group(tree):
    root = tree({
        "proc/self/cgroup": "4:memory:/docker/0123\n1:cpu,cpuacct:/docker/0123\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1073741824\n",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 73741824\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    assert memory_limits(root) == [MemoryLimit(4294967296, 1000000000)]
    assert cpu_quota(root) == 1.5


def test_v1_without_a_quota_writes_minus_one(tree):
    root = tree({
        "proc/self/cgroup": "1:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    assert cpu_quota(root) is None


def test_a_path_in_proc_does_not_lead_out_of_the_groups(tree):
    root = tree({"proc/self/cgroup": "0::/../../../etc\n", "etc/memory.max": "1\n", "sys/fs/cgroup/x": ""})
    assert memory_limits(root) == []


def test_no_groups_at_all_limit_nothing(tmp_path):
    assert (memory_limits(tmp_path), cpu_quota(tmp_path)) == ([], None)


def test_rocm_and_cann_come_from_their_version_files(tmp_path, fixture_text):
    info = fixture_text("ascend/ascend_toolkit_install.info")
    put(tmp_path / "opt/rocm/.info/version", "6.4.1-83\n")
    put(tmp_path / "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info", info)
    versions = runtime_versions(tmp_path, {})
    assert (versions["rocm"], versions["cann"]) == ("6.4.1", "8.3.rc2")


def test_the_environment_names_another_installation(tmp_path):
    put(tmp_path / "sw/rocm-7/.info/version", "7.0.2\n")
    put(tmp_path / "opt/rocm/.info/version", "6.4.1-83\n")
    put(tmp_path / "sw/cann/ascend_toolkit_install.info", "package_name=x\nversion=9.2.0-beta.2\n")
    versions = runtime_versions(tmp_path, {"ROCM_PATH": "/sw/rocm-7", "ASCEND_HOME_PATH": "/sw/cann"})
    assert (versions["rocm"], versions["cann"]) == ("7.0.2", "9.2.0-beta.2")


def test_packages_come_from_their_metadata_without_the_local_part(tmp_path, monkeypatch):
    put(tmp_path / "torch-9.9.0+cpu.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0+cpu\n")
    put(tmp_path / "tensorflow_rocm-2.18.1.dist-info/METADATA", "Name: tensorflow-rocm\nVersion: 2.18.1\n")
    put(tmp_path / "jax-0.dist-info/METADATA", "Name: jax\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    versions = runtime_versions(tmp_path, {})
    assert versions == {"python": platform.python_version(), "torch": "9.9.0", "tensorflow": "2.18.1"}


def test_a_version_of_a_real_package_can_be_compared():
    assert all(Version(text) for text in runtime_versions().values())
    assert Version(runtime_versions()["python"]).release[:2] == sys.version_info[:2]


def test_versions_are_read_without_imports():
    code = (
        "import sys; from hetero_airflow.discovery.sources.software_versions import runtime_versions; "
        "runtime_versions(); "
        "print(sorted({'torch', 'numpy', 'airflow', 'tensorflow', 'jax'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
