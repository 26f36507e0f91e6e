from __future__ import annotations

import gc

import pytest

from hetero_airflow.scheduling.garbage_collection import deferred_garbage_collection


def test_nothing_is_collected_meanwhile_and_as_before_afterwards() -> None:
    assert gc.isenabled()

    @deferred_garbage_collection()
    def fail() -> None:
        raise KeyError(gc.isenabled())

    with pytest.raises(KeyError, match="False"):
        fail()
    assert gc.isenabled()


def test_whoever_collects_by_hand_goes_on_to() -> None:
    gc.disable()
    try:
        with deferred_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
