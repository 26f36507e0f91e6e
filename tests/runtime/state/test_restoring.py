"""Generators go on where they were."""

import random

import numpy as np
import torch

from hetero_airflow.runtime.state.files import read_state, write_state
from hetero_airflow.runtime.state.restoring import Rng
from hetero_airflow.runtime.state.tree import stage


def drawn() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]


def test_the_generators_continue_after_a_restore_from_files(tmp_path) -> None:
    drawn()
    write_state(stage(Rng()), tmp_path)
    expected = [drawn(), drawn()]
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    Rng().load_state_dict(read_state(tmp_path))
    assert [drawn(), drawn()] == expected


def test_generators_of_missing_gpus_are_skipped() -> None:
    state = Rng().state_dict()
    absent = [torch.get_rng_state()] * (torch.cuda.device_count() + 1)
    Rng().load_state_dict({**state, "cuda": absent})
    assert Rng().state_dict()["torch"].equal(state["torch"])
