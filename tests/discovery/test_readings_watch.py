"""How fresh the readings are: with a clock that the test sets, and with a real process."""

from contextlib import closing

import pytest

from hetero_airflow.discovery import readings_watch
from hetero_airflow.discovery.readings_watch import MAX_AGE_S, Answer, ReaderProcess, ReadingsWatch
from hetero_airflow.model.device import Telemetry
from tests.waiting import eventually

UNKNOWN = Telemetry(device_id="GPU-0")


def reading(power_w: float) -> Telemetry:
    return Telemetry(device_id="GPU-0", power_w=power_w)


class FakeReader:
    """Reads the clock as watts."""

    def __init__(self, host: "Host") -> None:
        self.host, self.is_alive, self.asked_at = host, True, None

    def ask(self) -> None:
        assert self.asked_at is None, "it is asked once until it answers"
        self.asked_at = self.host.now

    def poll(self) -> Answer | None:
        if not self.is_alive or self.host.now < self.asked_at + self.host.took_s:
            return None
        asked_at, self.asked_at = self.asked_at, None
        return Answer(readings=(reading(asked_at), Telemetry(device_id="other")), took_s=self.host.took_s)

    def close(self) -> None:
        self.is_alive = False


class Host:
    """A clock, and what was started."""

    def __init__(self) -> None:
        self.now, self.took_s, self.readers = 0.0, 0.1, []

    def start(self, probe: str) -> FakeReader:
        self.readers.append(FakeReader(self))
        return self.readers[-1]


@pytest.fixture
def host(monkeypatch) -> Host:
    monkeypatch.setattr(readings_watch, "names", lambda group, table: ["nvidia"])
    monkeypatch.setattr(readings_watch, "has_trace", lambda name, environment: True)
    return Host()


@pytest.fixture
def watch(host) -> ReadingsWatch:
    """A watch that knows one device."""
    made = ReadingsWatch(host.start, lambda: host.now)
    made.take([reading(0)], 0.0)
    return made


def test_a_reading_is_that_of_the_last_answer_and_unknown_when_it_is_old(host, watch):
    watch.ask()
    host.now = 1
    assert watch.readings() == (reading(0),)
    watch.ask()
    host.now = 2
    assert watch.readings() == (reading(1),)
    host.now = 1 + MAX_AGE_S
    assert watch.readings() == (reading(1),)
    host.now += 0.1
    assert watch.readings() == (UNKNOWN,)


def test_a_discovery_does_not_replace_a_newer_reading(host, watch):
    host.now = 4
    watch.ask()
    host.now = 5
    assert watch.readings() == (reading(4),)
    watch.take([reading(99), Telemetry(device_id="GPU-1")], 3.0)
    assert watch.readings() == (reading(4), Telemetry(device_id="GPU-1"))


def test_it_asks_as_early_as_the_slowest_answer_needs(host, watch):
    assert watch.lead_s == 4.5, "nobody has answered yet"
    for host.took_s, lead_s in ((0.1, 0.6), (2, 2.5), (30, 4.5)):
        watch.ask()
        host.now += host.took_s
        watch.readings()
        assert watch.lead_s == lead_s


def test_a_reader_that_hangs_is_asked_once_and_one_that_has_ended_is_started_again(host, watch):
    host.took_s = 1e9
    for host.now in range(100):
        watch.ask()
    assert (len(host.readers), watch.readings()) == (1, (UNKNOWN,))
    host.readers[0].is_alive = False
    host.took_s = 0
    for host.now in range(100, 140):
        watch.ask()
    assert (len(host.readers), watch.readings()) == (2, (reading(139),))


def test_a_real_process_reads_again_and_again_and_ends_with_its_watch():
    with closing(ReaderProcess("cpu", 30)) as reader:
        for _ in range(3):
            reader.ask()
            (cpu,) = eventually(reader.poll).readings
            assert cpu.memory_free_bytes > 0
        assert reader.is_alive
    assert not reader.is_alive


def test_a_probe_that_fails_answers_without_readings():
    with closing(ReaderProcess("no such probe", 30)) as reader:
        reader.ask()
        assert eventually(reader.poll).readings == ()
        assert reader.is_alive


def test_a_process_ends_when_its_input_does():
    with closing(ReaderProcess("cpu", 30)) as reader:
        reader._input.close()
        assert eventually(lambda: not reader.is_alive)
