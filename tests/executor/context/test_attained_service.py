from datetime import timedelta

from hetero_airflow.executor.context import attained_service
from hetero_airflow.executor.context.attained_service import AttainedService
from hetero_airflow.model.run import RunEnd
from hetero_airflow.testing import EPOCH, a_lease, a_worker


def test_a_request_that_goes_on_later_keeps_its_place_and_its_service():
    services = AttainedService()
    services.begin("r", EPOCH)
    lease = a_lease("r", ago_s=9, **{"GPU-0": 1000})
    services.end(lease, a_worker(), RunEnd.PAUSED, EPOCH)
    submitted_at, seconds = services.before("r", EPOCH + timedelta(seconds=20))
    assert (submitted_at, list(seconds.values())) == (EPOCH, [9.0])
    services.end(lease, a_worker(), RunEnd.FINISHED, EPOCH + timedelta(seconds=30))
    assert not services.knows("r")


def test_requests_that_other_schedulers_finished_are_forgotten(monkeypatch):
    """Nobody reports their ends here."""
    monkeypatch.setattr(attained_service, "_MAX_RECORDS", 3)
    services = AttainedService()
    for name in "abcd":
        services.begin(name, EPOCH)
        services.begin("a", EPOCH)
    assert [name for name in "abcd" if services.knows(name)] == ["a", "c", "d"]
