"""The manifest of a checkpoint: size and digest of each file. It is written after the files and before the index."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from hetero_airflow.checkpoints.index import CheckpointEntry
from hetero_airflow.checkpoints.keys import check_file
from hetero_airflow.errors import InvalidCheckpoint, shorten
from hetero_airflow.validation import first_problem

MAX_FILES = 10_000
MAX_MANIFEST_BYTES = 8 << 20
MAX_METRICS = 64
MAX_METRIC_NAME = 128


class ManifestFile(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The content of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    step: int = Field(ge=0)
    metrics: dict[str, FiniteFloat]
    files: dict[Annotated[str, AfterValidator(check_file)], ManifestFile] = Field(max_length=MAX_FILES)

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size_bytes for file in self.files.values())


def describe_files(folder: Path) -> dict[str, ManifestFile]:
    """The files of a folder, by their names in it. Reads all of them.

    :raises InvalidCheckpoint: a link or device, a name that `check_file` refuses, no file, or too many
    """
    files: dict[str, ManifestFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        name = check_file(path.relative_to(folder).as_posix())
        if path.is_symlink() or not path.is_file():
            raise InvalidCheckpoint(
                f"checkpoint file {shorten(name)}", found="a link or a device", remedy="Copy the file itself"
            )
        files[name] = measure_file(path)
    if not 0 < len(files) <= MAX_FILES:
        raise InvalidCheckpoint(
            "to save a checkpoint",
            found=f"{len(files)} files",
            remedy=f"Keep 1 to {MAX_FILES}; an archive counts as one",
        )
    return files


def measure_file(path: Path) -> ManifestFile:
    """The current size and digest of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return ManifestFile(size_bytes=file.tell(), sha256=digest)


def check_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics as finite floats.

    >>> check_metrics({"loss": 1})
    {'loss': 1.0}
    >>> check_metrics({"loss": float("nan")})
    Traceback (most recent call last):
    ...
    hetero_airflow.errors.InvalidCheckpoint: Metric loss=nan can't be used; found no finite number. Leave it out, or \
find out why the training diverged; nothing was saved.

    :raises InvalidCheckpoint: a value that is no finite number, a name that can't be printed, or too many
    """
    if len(metrics) > MAX_METRICS:
        raise InvalidCheckpoint(
            "metrics",
            found=f"{len(metrics)} metrics, above the limit of {MAX_METRICS}",
            remedy="Save the most important ones",
        )
    return {_checked_name(name): _finite(name, value) for name, value in metrics.items()}


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_METRIC_NAME or not name.isprintable():
        raise InvalidCheckpoint(
            f"metric {shorten(name)}",
            found="no printable text of at most 128 characters",
            remedy="Use a short name such as val/loss",
        )
    return name


def _finite(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several numbers raises the last
        number = math.nan
    if not math.isfinite(number):
        raise InvalidCheckpoint(
            f"metric {name}={shorten(value)}",
            found="no finite number",
            remedy="Leave it out, or find out why the training diverged; nothing was saved",
        )
    return number


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON.

    :raises InvalidCheckpoint: over 8 MiB
    """
    content = manifest.model_dump_json().encode()
    if len(content) > MAX_MANIFEST_BYTES:
        raise InvalidCheckpoint(
            f"a manifest of {len(manifest.files)} files", found=f"{len(content)} bytes", remedy="Keep fewer files"
        )
    return content


def decode_manifest(content: bytes, entry: CheckpointEntry) -> Manifest:
    """The manifest of an entry, from its stored JSON.

    :raises InvalidCheckpoint: it is not the one that the index names, or it can't be read
    """
    asked = f"manifest of checkpoint {entry.key}"
    if hashlib.sha256(content).hexdigest() != entry.digest:
        raise InvalidCheckpoint(asked, found="another digest than the index says", remedy="Use an earlier checkpoint")
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        path, found = first_problem(error)
        raise InvalidCheckpoint(
            asked,
            found=f"{found} at {path}" if path else found,
            remedy="Use an earlier checkpoint, or a later version of hetero-airflow",
        ) from error
    if (manifest.step, manifest.size_bytes) != (entry.step, entry.size_bytes):
        raise InvalidCheckpoint(
            f"{asked} of step {entry.step} with {entry.size_bytes} bytes",
            found=f"step {manifest.step} with {manifest.size_bytes} bytes",
            remedy="Use an earlier checkpoint",
        )
    return manifest
