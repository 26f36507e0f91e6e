import os
from pathlib import Path

import pytest

from hetero_airflow.checkpoints import manifest
from hetero_airflow.checkpoints.manifest import Manifest, ManifestFile, check_metrics, describe_files, encode_manifest
from hetero_airflow.errors import InvalidCheckpoint


def test_the_files_of_a_folder_are_described_by_their_names_in_it(tmp_path: Path) -> None:
    (tmp_path / "files" / ".dcp").mkdir(parents=True)
    (tmp_path / "files" / ".dcp" / ".metadata").write_bytes(b"abc")
    (tmp_path / "a").write_bytes(b"")
    assert describe_files(tmp_path) == {
        "a": ManifestFile(size_bytes=0, sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        "files/.dcp/.metadata": ManifestFile(
            size_bytes=3, sha256="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        ),
    }


def test_a_link_or_device_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    for number, make in enumerate(
        [
            lambda path: path.symlink_to("/etc/passwd"),
            lambda path: path.symlink_to(secret),
            lambda path: path.symlink_to("nowhere"),
            os.mkfifo,
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "a")
        with pytest.raises(InvalidCheckpoint, match="a link or a device"):
            describe_files(folder)


@pytest.mark.parametrize("name", ["manifest.json", "a\\b", "a\nb", "lock~"])
def test_a_file_with_an_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidCheckpoint):
        describe_files(tmp_path)


def test_no_file_and_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidCheckpoint, match="found 0 files"):
        describe_files(tmp_path)
    monkeypatch.setattr(manifest, "MAX_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidCheckpoint, match="found 3 files"):
        describe_files(tmp_path)


def test_a_manifest_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Manifest(step=1, metrics={}, files={"a": ManifestFile(size_bytes=1, sha256="0" * 64)})
    monkeypatch.setattr(manifest, "MAX_MANIFEST_BYTES", len(encode_manifest(small)) - 1)
    with pytest.raises(InvalidCheckpoint, match="Keep fewer files"):
        encode_manifest(small)


class Several:
    """As a tensor of two numbers."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 10**400, "high", None, [1], Several()])
def test_a_metric_that_is_no_finite_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidCheckpoint, match="no finite number") as caught:
        check_metrics({"loss": value})  # type: ignore[dict-item]
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 129, 5])
def test_a_metric_without_a_short_printable_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidCheckpoint, match="Use a short name such as val/loss"):
        check_metrics({name: 1.0})  # type: ignore[dict-item]


def test_too_many_metrics_are_refused() -> None:
    with pytest.raises(InvalidCheckpoint, match="found 65 metrics, above the limit of 64"):
        check_metrics({str(number): 1.0 for number in range(65)})
