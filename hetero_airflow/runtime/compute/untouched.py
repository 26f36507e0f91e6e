"""What a trial of training steps must not change."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hetero_airflow.runtime.scratch_folder import ScratchFolder
from hetero_airflow.runtime.state.files import read_state, write_state
from hetero_airflow.runtime.state.restoring import Rng, check_restorable, restore
from hetero_airflow.runtime.state.tree import stage


@contextmanager
def untouched(state: Mapping[str, Any]) -> Iterator[None]:
    """Afterwards all that is in the state is as before, to the bit, and so are the process's random generators.

    So are the gradients, buffers and modes of its modules, which a state leaves out. Ranks do not exchange gradients
    meanwhile. The copy lies on the disk: it would be counted as memory of the steps.

    :raises RequestError: a state that can't be restored
    :raises OSError: the temporary folder is full
    """
    check_restorable(state)
    scratch = ScratchFolder()
    folder = scratch.path()
    folder.mkdir()
    whole = {"state": state, "rng": Rng()}
    write_state(stage(whole), folder)
    modules = modules_in(state)
    modes = [(part, part.training) for module in modules for part in module.modules()]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    gradients = [(weight, weight.grad) for module in modules for weight in module.parameters()]
    try:
        for weight, _ in gradients:
            weight.grad = None
        with ExitStack() as stack:
            for module in modules:
                if isinstance(module, DistributedDataParallel):
                    stack.enter_context(module.no_sync())
            yield
    finally:
        for weight, gradient in gradients:
            weight.grad = gradient
        with torch.no_grad():
            for buffer, content in buffers:
                buffer.copy_(content)
        for part, is_training in modes:
            part.training = is_training
        restore(whole, read_state(folder))
        scratch.remove()


def modules_in(state: Any) -> list[torch.nn.Module]:
    """The modules in a state, at any depth of its dicts."""
    if isinstance(state, torch.nn.Module):
        return [state]
    return [module for part in state.values() for module in modules_in(part)] if isinstance(state, Mapping) else []
