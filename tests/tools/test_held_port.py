"""Ports for servers that can't choose one and report it."""

import socket

import held_port
import pytest
from held_port import HeldPort


@pytest.mark.parametrize(("first", "below"), [(32_768, 32_768), (11_000, 11_000), (10_999, 32_768), (1024, 32_768)])
def test_it_lies_below_the_ports_of_connections_where_these_leave_enough(tmp_path, monkeypatch, first, below):
    (tmp_path / "range").write_text(f"{first}\t65535\n")
    monkeypatch.setattr(held_port, "_EPHEMERAL", tmp_path / "range")
    assert 10_000 <= HeldPort().number < below


def test_nobody_else_holds_it_until_it_is_released(monkeypatch):
    first = HeldPort()
    monkeypatch.setattr(held_port.random, "sample", lambda numbers, count: [first.number])
    with pytest.raises(OSError, match="found none that is free"):
        HeldPort()
    first.release()
    second = HeldPort()
    assert second.number == first.number
    second.release()
    with socket.create_server(("127.0.0.1", second.number)), pytest.raises(OSError, match="found none"):
        HeldPort()
