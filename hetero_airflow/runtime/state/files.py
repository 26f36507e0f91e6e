"""The files of a state: ``state.json`` with its tree, a safetensors file with its arrays, one for each table."""

import os
import re
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from hetero_airflow.errors import InvalidCheckpoint, shorten
from hetero_airflow.runtime.state.tree import StagedState, restore_tree

TREE = "state.json"
TENSORS = "tensors-00000-of-00001.safetensors"
_VALUE_FILE = re.compile(r"value-\d{5,}\.(arrow|skops)")


def write_state(staged: StagedState, folder: Path) -> list[Path]:
    """Write a state's files into a folder.

    :raises OSError: the disk is full, or a file can't be written
    :raises InvalidCheckpoint: safetensors can't represent one of the types
    """
    tree = folder / TREE
    tree.write_bytes(staged.text())
    written = [tree]
    for name, content in staged.files.items():
        (folder / name).write_bytes(content)
        written.append(folder / name)
    if staged.arrays:
        _write_arrays(staged.arrays, folder / TENSORS)
        written.append(folder / TENSORS)
    return written


def read_state(folder: Path) -> Any:
    """Read the state in a folder; tensors are on the CPU. The files can't run code.

    :raises InvalidCheckpoint: the files are not a state, for example a pickle under another name
    """
    tree, tensors = folder / TREE, folder / TENSORS
    if not tree.is_file():
        raise InvalidCheckpoint(
            f"the state of the checkpoint in {folder}",
            found=f"no {TREE}",
            remedy="Load a sharded state with checkpoint.load_distributed()",
        )
    with _Arrays(tensors) as arrays:
        return restore_tree(tree.read_bytes(), arrays.get, partial(_read_value_file, folder))


def _read_value_file(folder: Path, name: str) -> bytes:
    if not _VALUE_FILE.fullmatch(name):
        raise ValueError(f"no name of a value's file: {shorten(name)}")
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise InvalidCheckpoint(
            f"to load {name}", found=type(error).__name__, remedy="Use the previous checkpoint"
        ) from error


class _Arrays:
    """The arrays of a file. Each is read once, at its first access, so that shared arrays are shared again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = ExitStack()
        self._files: dict[str, Any] = {}
        self._read: dict[tuple[str, str], Any] = {}

    def __enter__(self) -> "_Arrays":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def get(self, name: str, kind: str) -> Any:
        from safetensors import SafetensorError

        key = (name, kind)
        try:
            if key not in self._read:
                self._read[key] = self._file(kind).get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise InvalidCheckpoint(
                f"{shorten(name)} in {self._path.name}",
                found=_describe_file(self._path, error),
                remedy="Only safetensors are loaded: convert the file, or use the previous checkpoint",
            ) from error
        return self._read[key]

    def _file(self, kind: str) -> Any:
        from safetensors import safe_open

        if kind not in self._files:
            framework = "pt" if kind == "torch" else "np"
            self._files[kind] = self._open.enter_context(safe_open(self._path, framework=framework))
        return self._files[kind]


def _describe_file(path: Path, error: Exception) -> str:
    start = path.read_bytes()[:4] if path.is_file() else b""
    if start[:2] == b"PK" or start[:1] == b"\x80":
        return "a pickle (as torch.save writes), which can run code and is never opened"
    return f"not a safetensors file ({shorten(str(error))})"


def _write_arrays(arrays: dict[str, Any], path: Path) -> None:
    from safetensors import SafetensorError

    try:
        torch = sys.modules.get("torch")
        if torch is None:
            from safetensors.numpy import save_file

            save_file(arrays, path)
        else:
            from safetensors.torch import save_file as save_tensors

            save_tensors({name: torch.as_tensor(array) for name, array in arrays.items()}, path)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))  # Rust's form of errno
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    except (KeyError, ValueError) as error:
        types = sorted({str(array.dtype) for array in arrays.values()})
        raise InvalidCheckpoint(
            "to write the state's arrays",
            found=f"types among {', '.join(types)} that safetensors can't hold ({shorten(str(error))})",
            remedy="Save them as another type",
        ) from error
