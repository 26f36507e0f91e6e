from __future__ import annotations

import gc

import pytest

from hetero_airflow.scheduling.collecting import collecting_later


def test_nothing_is_collected_meanwhile_and_as_before_afterwards() -> None:
    assert gc.isenabled()

    @collecting_later()
    def fail() -> None:
        raise KeyError(gc.isenabled())

    with pytest.raises(KeyError, match="False"):
        fail()
    assert gc.isenabled()


def test_whoever_collects_by_hand_goes_on_to() -> None:
    gc.disable()
    try:
        with collecting_later():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
