import pytest

from hetero_airflow.discovery.sources.cgroup import MemoryLimit, cpu_quota, memory_limits


@pytest.fixture
def tree(tmp_path):
    def make(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
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
