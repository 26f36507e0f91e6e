"""A task's state without pickle: a JSON tree, and the arrays that the tree names.

A value that JSON can't represent becomes an object with the key ``$``: tensors, arrays and bytes (by the name of their
array), tables and estimators (by the name of their file), tuples, mappings with keys that are not strings, floats that
are not finite, integers beyond 64 bits.

Objects with ``state_dict()`` and ``load_state_dict()``, as torch's modules have, restore themselves. Everything else is
plain: it is saved as it is, and restored as a whole.

Pickle was rejected because loading it can run code. Values that only pickle can represent (objects, functions, sets)
are refused at the save, with their place in the tree, and not discovered at the load.
"""

import json
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hetero_airflow.errors import InvalidCheckpoint, shorten
from hetero_airflow.runtime.state.formats import ValueFile, from_file, to_file

if TYPE_CHECKING:
    import numpy as np
    import torch

TAG = "$"
MAX_DEPTH = 100
"""Levels of nesting; a state that contains itself exceeds any limit."""

MAX_PLACE = 200
"""How many characters of a place in the state an error shows."""

MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
"""Types of mappings that are restored as the same type; torch's schedulers need a Counter."""


@dataclass(slots=True)
class StagedState:
    """A copy of a state that nothing else refers to, so it does not change while the task continues."""

    tree: Any
    """JSON."""
    arrays: "dict[str, torch.Tensor | np.ndarray[Any, Any]]" = field(default_factory=dict)
    """The arrays by their place in the state, such as ``state['model']['0.weight']``; in host memory, contiguous."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The content of the tables and estimators, by the name of their file."""
    _spare: "dict[str, torch.Tensor | np.ndarray[Any, Any]]" = field(default_factory=dict)
    """Arrays of a published state, to reuse their memory: new memory costs ten times as much as the copy."""
    _seen: "dict[tuple[Any, ...], tuple[str, torch.Tensor]]" = field(default_factory=dict)
    """Tensors copied so far; references to them keep another tensor from getting the same address."""

    def text(self) -> bytes:
        """The tree as JSON."""
        return json.dumps(self.tree, allow_nan=False, separators=(",", ":")).encode()


def stage(state: object, over: StagedState | None = None, where: str = "state") -> StagedState:
    """Copy a state to host memory, and reuse the memory of a staged state that is not needed any more.

    An object with ``state_dict()`` is replaced by it. A tensor that occurs twice (tied weights) is copied once.
    Tensors on a GPU are copied through pinned memory. This returns when all copies are complete.

    >>> staged = stage({"step": 3, "best": float("inf"), "range": (0, 1)})
    >>> staged.tree["best"], staged.tree["range"]
    ({'$': 'float', 'value': 'inf'}, {'$': 'tuple', 'items': [0, 1]})

    :raises InvalidCheckpoint: a value that only pickle can represent; the error says where
    """
    staged = StagedState(tree=None, _spare=over.arrays if over else {})
    staged.tree = _encode(state, where, staged, 0)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    staged._seen.clear()
    staged._spare = {}
    return staged


def restore_tree(text: bytes, array: Callable[[str, str], Any], read_file: Callable[[str], bytes]) -> Any:
    """The state from the text that `stage` made.

    :param array: gives an array by its name and kind (``torch`` or ``numpy``)
    :param read_file: gives the content of a table's or an estimator's file by its name

    >>> restore_tree(stage({7: [1.5, float("-inf"), (None, True)]}).text(), lambda name, kind: None, lambda name: b"")
    {7: [1.5, -inf, (None, True)]}

    :raises InvalidCheckpoint: the text is not such a tree
    """
    try:
        return _Decoder(array, read_file).decode(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InvalidCheckpoint):
            raise
        raise InvalidCheckpoint(
            "the state of a checkpoint",
            found=f"a tree that can't be read ({type(error).__name__}: {shorten(str(error))})",
            remedy="Load it with the version of hetero-airflow that saved it, or use the previous checkpoint",
        ) from error


def has_state_dict(value: object) -> bool:
    """Whether the value is an object with ``state_dict()``.

    >>> import random
    >>> has_state_dict(3), has_state_dict(random)
    (False, False)
    """
    return callable(getattr(value, "state_dict", None)) and not isinstance(value, type)


def holds_objects(value: object) -> bool:
    """Whether the value is an object with ``state_dict()``, or a container that has one at any depth.

    >>> holds_objects({"sum": 3, "rows": [[1], (2, {})]})
    False
    """
    parts, visited_ids = [value], set()
    while parts:
        part = parts.pop()
        if has_state_dict(part):
            return True
        if isinstance(part, (Mapping, list, tuple)) and id(part) not in visited_ids:  # it may contain itself
            visited_ids.add(id(part))
            parts.extend(part.values() if isinstance(part, Mapping) else part)
    return False


def _encode(value: Any, where: str, staged: StagedState, depth: int) -> Any:
    if depth > MAX_DEPTH:
        remedy = "Flatten it; a state can't contain itself"
        raise _refused(where, found=f"more than {MAX_DEPTH} levels of nesting", remedy=remedy)
    kind = type(value)
    if value is None or kind in (bool, str, int, float):
        return _encode_scalar(value)
    if kind is complex:
        return {TAG: "complex", "value": [_encode(part, where, staged, depth) for part in (value.real, value.imag)]}
    if kind is bytes:
        import numpy as np

        return {TAG: "bytes", "array": _keep(np.frombuffer(value, dtype=np.uint8), where, staged)}
    if kind is list:
        return [_encode(item, f"{where}[{n}]", staged, depth + 1) for n, item in enumerate(value)]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {TAG: "tuple", "items": [_encode(x, f"{where}[{n}]", staged, depth + 1) for n, x in enumerate(value)]}
    if kind in MAPPINGS:
        return _encode_mapping(value, where, staged, depth)
    return _encode_foreign(value, where, staged, depth)


def _encode_scalar(value: Any) -> Any:
    if type(value) is int and not -(2**63) <= value < 2**63:
        return {TAG: "int", "value": hex(value)}
    if type(value) is float and not math.isfinite(value):
        return {TAG: "float", "value": repr(value)}
    return value


def _encode_mapping(value: Mapping[Any, Any], where: str, staged: StagedState, depth: int) -> Any:
    items = []
    for key, item in value.items():
        if not (key is None or type(key) in (bool, int, str) or (type(key) is float and math.isfinite(key))):
            found = f"the key {shorten(key)} of the type {_name(key)}"
            raise _refused(where, found=found, remedy="Use strings or numbers as keys")
        items.append((key, _encode(item, f"{where}[{key!r}]", staged, depth + 1)))
    if type(value) is dict and all(type(key) is str for key in value) and TAG not in value:
        return dict(items)
    encoded = {TAG: MAPPINGS[type(value)], "items": [[_encode(key, where, staged, 0), item] for key, item in items]}
    versions = getattr(value, "_metadata", None)  # of a module's parts; load_state_dict upgrades old states by it
    if versions:
        encoded["metadata"] = _encode(dict(versions), where, staged, depth + 1)
    return encoded


def _encode_foreign(value: Any, where: str, staged: StagedState, depth: int) -> Any:
    torch, np = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _encode_tensor(value, where, staged)
    if np is not None and isinstance(value, (np.ndarray, np.generic)):
        return _encode_array(value, where, staged)
    if has_state_dict(value):
        return _encode(value.state_dict(), where, staged, depth + 1)
    file = to_file(value, where)
    if file is not None:
        return _encode_file(file, getattr(value, "name", None), where, staged)
    raise _refused(
        where,
        found=f"an object of the type {_name(value)}",
        remedy="Save its content as numbers, strings, lists, dicts, tensors or arrays, or give it state_dict() and "
        "load_state_dict(); pickle is not used",
    )


def _encode_file(file: ValueFile, series: Any, where: str, staged: StagedState) -> Any:
    name = f"value-{len(staged.files):05d}.{file.suffix}"
    staged.files[name] = file.content
    encoded = {TAG: file.kind, "file": name}
    return encoded | {"name": _encode(series, f"{where}.name", staged, 0)} if file.kind == "series" else encoded


def _encode_tensor(value: "torch.Tensor", where: str, staged: StagedState) -> Any:
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise _refused(
            where,
            found=f"a tensor of the type {_name(value)}",
            remedy="Save sharded tensors with checkpoint.save_distributed(), others as plain tensors",
        )
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
        raise _refused(
            where,
            found=f"a tensor that is not dense ({value.layout}, {value.device}, {value.dtype})",
            remedy="Save a dense copy",
        )
    plain = value.detach()
    tag: dict[str, Any] = {TAG: "torch"}
    if plain.is_complex():
        plain, tag = torch.view_as_real(plain.resolve_conj()), {TAG: "torch", "complex": True}
    same = (plain.device, plain.dtype, plain.data_ptr(), plain.shape, plain.stride(), plain.is_neg())
    if same not in staged._seen or not plain.numel():
        staged.arrays[where] = _host_copy(plain, staged._spare.get(where))
        staged._seen[same] = (where, plain)
    return {**tag, "array": staged._seen[same][0]}


def _host_copy(tensor: "torch.Tensor", spare: object) -> "torch.Tensor":
    """A contiguous copy in host memory, pinned for a tensor of a GPU; it is in `spare` if that fits."""
    import torch

    is_pinned = tensor.device.type == "cuda"
    layout = (tensor.shape, tensor.dtype, is_pinned)
    if isinstance(spare, torch.Tensor) and (spare.shape, spare.dtype, spare.is_pinned()) == layout:
        target = spare
    else:
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_neg():
        return target.copy_(tensor, non_blocking=True)
    # numpy copies in one thread. torch's copy uses all cores and waits for the slowest: 0.7 s instead of 0.04 s for
    # 100 MB, on two cores that ten processes shared (2026-11).
    import numpy as np

    np.copyto(_bytes(target), _bytes(tensor))
    return target


def _bytes(tensor: "torch.Tensor") -> "np.ndarray[Any, Any]":
    import torch

    view: np.ndarray[Any, Any] = tensor.reshape(-1).view(torch.uint8).numpy()
    return view


def _encode_array(value: Any, where: str, staged: StagedState) -> Any:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        raise _refused(where, found=f"an array of {array.dtype}", remedy="Save booleans, or real or complex numbers")
    tag: dict[str, Any] = {TAG: "numpy"}
    if isinstance(value, np.generic):
        tag["scalar"] = True
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    if array.dtype.kind == "c":
        tag["complex"] = True
        array = array.reshape(*array.shape, 1).view(array.real.dtype)
    return {**tag, "array": _keep(array, where, staged)}


def _keep(array: "np.ndarray[Any, Any]", where: str, staged: StagedState) -> str:
    import numpy as np

    target = staged._spare.get(where)
    if isinstance(target, np.ndarray) and (target.shape, target.dtype) == (array.shape, array.dtype):
        np.copyto(target, array)
    else:
        target = array.copy()
    staged.arrays[where] = target
    return where


class _Decoder:
    """Restores tagged objects; an unknown tag is an error."""

    def __init__(self, array: Callable[[str, str], Any], read_file: Callable[[str], bytes]) -> None:
        self._array = array
        self._read_file = read_file
        self._by_tag: dict[object, Callable[[dict[str, Any]], Any]] = {
            "tuple": lambda value: tuple(self.decode(value["items"])),
            "int": lambda value: int(value["value"], 16),
            "float": lambda value: float(value["value"]),
            "complex": lambda value: complex(*self.decode(value["value"])),
            "bytes": lambda value: array(value["array"], "numpy").tobytes(),
            "torch": self._tensor,
            "numpy": self._ndarray,
            **dict.fromkeys(("arrow", "dataframe", "sklearn"), self._value_of_file),
            "series": lambda value: self._value_of_file(value).rename(self.decode(value["name"])),
            **dict.fromkeys(MAPPINGS.values(), self._mapping),
        }

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if TAG not in value:
            return {key: self.decode(item) for key, item in value.items()}
        tag = value[TAG]
        if not isinstance(tag, str) or tag not in self._by_tag:
            raise ValueError(f"unknown tag {shorten(tag)}")
        return self._by_tag[tag](value)

    def _ndarray(self, value: dict[str, Any]) -> Any:
        array = self._array(value["array"], "numpy")
        if value.get("complex"):
            array = array.view(f"c{2 * array.itemsize}")[..., 0]
        return array[()] if value.get("scalar") else array

    def _tensor(self, value: dict[str, Any]) -> Any:
        tensor = self._array(value["array"], "torch")
        return sys.modules["torch"].view_as_complex(tensor) if value.get("complex") else tensor

    def _value_of_file(self, value: dict[str, Any]) -> Any:
        return from_file(value[TAG], self._read_file(value["file"]), value["file"])

    def _mapping(self, value: dict[str, Any]) -> Any:
        kind = next(kind for kind, name in MAPPINGS.items() if name == value[TAG])
        mapping = kind({self.decode(key): self.decode(item) for key, item in value["items"]})
        if "metadata" in value:
            mapping._metadata = self.decode(value["metadata"])
        return mapping


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _refused(where: str, *, found: str, remedy: str) -> InvalidCheckpoint:
    place = where if len(where) <= MAX_PLACE else f"{where[:MAX_PLACE]}..."
    return InvalidCheckpoint(f"to save {place}", found=found, remedy=remedy)
