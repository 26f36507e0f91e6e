import platform
import subprocess
import sys

from packaging.version import Version

from hetero_airflow.discovery.sources.software_versions import runtime_versions


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


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
