from datetime import timedelta

import pytest

from hetero_airflow.model.heartbeat import SERVER_HEARTBEAT_S, ServerHeartbeat, time_without_heartbeat
from hetero_airflow.testing import EPOCH


def at(seconds: float):
    return EPOCH + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("seen", "since", "server_at", "now", "silent_s"),
    [
        (100, 0, 118, 120, 20),  # an agent that is gone, heard by a server that is there
        (100, 0, 102, 200, 7),  # both fell silent: the server is away
        (100, 198, 198, 200, 2),  # the server has just come back
        (100, 0, 118, 420, 23),  # the asker's clock is five minutes ahead
        (100, 0, 118, -180, 18),  # ... and behind
        (119, 0, 118, 120, 1),  # an agent that is there
    ],
)
def test_missing_heartbeats_count_by_the_servers_clock_while_it_was_there(seen, since, server_at, now, silent_s):
    assert time_without_heartbeat(at(seen), ServerHeartbeat(at(since), at(server_at)), at(now)) == timedelta(
        seconds=silent_s
    )


def test_a_liveness_timeout_is_known_at_once_while_the_server_sends_heartbeats():
    for tenths in range(200):
        now = tenths / 10
        server = ServerHeartbeat(at(-100), at(now - now % SERVER_HEARTBEAT_S))
        assert time_without_heartbeat(EPOCH, server, at(now)) == timedelta(seconds=now)
