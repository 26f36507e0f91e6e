"""A sharded state: every rank of torch.distributed writes its part, and rank 0 publishes all parts as one checkpoint.

torch.distributed.checkpoint (DCP) plans the parts, and can read them with another number of ranks. Its safetensors
writer is used, since its default format is pickle. Values that are not tensors go into ``state.json``, from rank 0. All
ranks write to one folder under `TMPDIR`, which all of them must see, as ranks of one host do.
"""

from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_airflow.checkpoints.manifest import check_metrics
from hetero_airflow.errors import InvalidCheckpoint
from hetero_airflow.runtime.checkpoint_session import CheckpointSession, check_step
from hetero_airflow.runtime.gang.ranks import rank
from hetero_airflow.runtime.state.files import read_state, write_state
from hetero_airflow.runtime.state.tree import stage

if TYPE_CHECKING:
    import torch

SHARDS = "sharded"
"""The folder of the ranks' files in a checkpoint."""


def save_distributed(
    session: CheckpointSession,
    step: int,
    state_dict: Mapping[str, Any],
    *,
    metrics: Mapping[str, float] | None,
    wait: bool,
    final: bool,
) -> None:
    """Save every rank's part of a state under one manifest; see `checkpoint.save_distributed`."""
    number = check_step(step)
    valid_metrics = check_metrics(metrics or {})
    session.begin()
    session.wait()
    folder = session.collectives.folder(session.folder() if rank() == 0 else None)
    wait_for_shards = _write_shards(session, _tensors(state_dict), folder / SHARDS)
    if rank() == 0:
        rest_of_state = stage(_without_tensors(state_dict))

        def write() -> None:
            wait_for_shards()
            write_state(rest_of_state, folder)

        session.submit(number, folder, write, metrics=valid_metrics, final=final)
    else:
        session.follow(number, wait_for_shards)
    session.saved_step = number
    if wait:
        session.wait()
        session.collectives.wait()


def load_distributed(session: CheckpointSession, state_dict: MutableMapping[str, Any]) -> int | None:
    """Fill the state of these ranks from the latest checkpoint; see `checkpoint.load_distributed`."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    last = session.latest() if rank() == 0 else None
    step = session.collectives.broadcast(-1 if last is None else last.step)
    if step < 0:
        return None
    folder = session.collectives.folder(None if last is None else last.folder)
    if not session.collectives.broadcast((folder / SHARDS).is_dir()):
        raise InvalidCheckpoint(
            f"the sharded state of step {step}",
            found="a state that checkpoint.save() saved",
            remedy="Load it with checkpoint.latest()",
        )
    tensors = _tensors(state_dict)
    if tensors:
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder / SHARDS)))
    _fill(state_dict, read_state(folder), "state")
    session.collectives.wait()  # rank 0 owns the folder
    return step


def _write_shards(session: CheckpointSession, tensors: "dict[str, torch.Tensor]", folder: Path) -> Callable[[], object]:
    """Copy this rank's tensors and begin to write them; returns a function that waits for the files of all ranks."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

    if rank() == 0:
        folder.mkdir()
    session.collectives.wait()
    if not session.collectives.all(folder.is_dir()):
        raise InvalidCheckpoint(
            "to save the parts of all ranks in one folder",
            found="ranks that do not see rank 0's temporary folder",
            remedy="Set TMPDIR to a folder that all hosts share",
        )
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    response = async_save(tensors, storage_writer=writer, process_group=session.background.group())
    return (response.upload_completion if isinstance(response, AsyncSaveResponse) else response).result


def _tensors(state: object, where: str = "state") -> dict[str, Any]:
    """The tensors of a state, by their place in it."""
    import torch

    if isinstance(state, torch.Tensor):
        return {where: state}
    parts = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list) else ()
    return {name: tensor for key, part in parts for name, tensor in _tensors(part, f"{where}[{key!r}]").items()}


def _without_tensors(state: Any) -> Any:
    """The state with None for each tensor."""
    import torch

    if isinstance(state, torch.Tensor):
        return None
    if isinstance(state, Mapping):
        return {key: _without_tensors(part) for key, part in state.items()}
    return [_without_tensors(part) for part in state] if isinstance(state, list) else state


def _fill(state: Any, saved: Any, where: str) -> None:
    """Restore the values that are not tensors, in place."""
    import torch

    keys = list(state) if isinstance(state, Mapping) else list(range(len(state)))
    for key in keys:
        place = f"{where}[{key!r}]"
        if isinstance(state[key], torch.Tensor):
            continue
        try:
            value = saved[key]
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidCheckpoint(
                f"to restore {place}", found="a checkpoint without it", remedy="Pass a state with the saved names"
            ) from error
        if isinstance(state[key], (dict, list)):
            _fill(state[key], value, place)
        else:
            state[key] = value
