"""The errors of devices that an agent keeps until the server confirms them."""

from datetime import timedelta

import pytest

from hetero_airflow.agent.error_watch import MAX_KEPT, ErrorWatch
from hetero_airflow.agent.protocol import MAX_ERRORS
from hetero_airflow.discovery.health.xid_watch import XidEvent
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.worker import Inventory
from hetero_airflow.testing import EPOCH, FakeClock, a_cpu, a_device, a_worker


class Xids:
    """Stands in for `XidWatch`."""

    def __init__(self):
        self.new_events, self.polls, self.is_closed = [], 0, False

    def poll(self):
        self.polls += 1
        events, self.new_events = self.new_events, []
        return events

    def close(self):
        self.is_closed = True


class Host:
    """A watch of one host's devices, with a scripted driver."""

    def __init__(self, *devices):
        self.xids, self.clock = Xids(), FakeClock()
        self.watch = ErrorWatch(self.xids, self.clock.now)
        self.worker = a_worker(devices=devices or (a_device(),))
        self.see()

    def see(self, **readings):
        telemetry = tuple(Telemetry(device_id=name.replace("_", "-"), ecc_errors=n) for name, n in readings.items())
        self.watch.take_inventory(Inventory(worker=self.worker, telemetry=telemetry))

    def add_xids(self, *xids, uuid="GPU-0"):
        self.xids.new_events += [XidEvent(uuid=uuid, xid=xid, at=self.clock.advance(1)) for xid in xids]

    def reported_errors(self):
        """(device, XID or number of ECC errors) of the errors to report. The server takes them."""
        errors = self.watch.unconfirmed()
        self.watch.confirm(errors)
        return [(error.device_id, error.xid or f"{error.ecc_errors} ECC") for error in errors]


def test_xids_and_new_ecc_errors_are_reported_until_they_are_known():
    host = Host()
    host.see(GPU_0=3)
    host.see(GPU_0=5)
    host.add_xids(79)
    assert host.watch.unconfirmed() == host.watch.unconfirmed()
    assert host.reported_errors() == [("GPU-0", "2 ECC"), ("GPU-0", 79)]
    host.see(GPU_0=5)
    assert host.reported_errors() == []


def test_an_error_during_a_report_is_in_the_next_report():
    host = Host()
    host.add_xids(63)
    errors = host.watch.unconfirmed()
    host.add_xids(63, 48)
    host.watch.unconfirmed()
    host.watch.confirm(errors)
    assert host.reported_errors() == [("GPU-0", 63), ("GPU-0", 48)]


def test_a_storm_of_one_pushes_no_other_out():
    host = Host()
    host.add_xids(79, *[45] * 10_000)
    assert host.reported_errors() == [("GPU-0", 79), *[("GPU-0", 45)] * MAX_KEPT]


def test_errors_beyond_the_limit_of_a_heartbeat_are_in_the_next_one():
    host = Host()
    host.add_xids(*range(1, MAX_ERRORS + 10))
    assert [len(host.reported_errors()) for _ in range(3)] == [MAX_ERRORS, 9, 0]


@pytest.mark.parametrize("xid", [-1, 10_001, 2**63])
def test_a_number_that_is_no_xid_is_passed_over(xid):
    host = Host()
    host.add_xids(xid, 79)
    assert host.reported_errors() == [("GPU-0", 79)]


@pytest.mark.parametrize("device", [a_cpu(), a_device(simulated=True), a_device(vendor="amd")])
def test_xids_are_listened_for_only_where_there_are_nvidia_gpus(device):
    host = Host(device)
    host.watch.unconfirmed()
    assert host.xids.polls == 0
    host.watch.close()
    assert host.xids.is_closed


def test_each_error_has_the_time_at_which_it_was_noticed():
    host = Host()
    host.see(GPU_0=0)
    host.clock.advance(30)
    host.see(GPU_0=1)
    assert [error.at for error in host.watch.unconfirmed()] == [EPOCH + timedelta(seconds=30)]
