"""The route for Prometheus: ``GET /hetero/metrics``, with a token of its own."""

from datetime import UTC, datetime

from fastapi import APIRouter, Depends, Request, Response

from hetero_airflow.agent.protocol import RefusalCode
from hetero_airflow.errors import SettingsError
from hetero_airflow.metrics.access import is_token, metrics_token
from hetero_airflow.metrics.collector import FleetFacts, exposition
from hetero_airflow.model.host_data import CacheCounts
from hetero_airflow.store.sql.queue import count_waiting_reasons
from hetero_airflow.store.sql.tallies import read_tallies
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.web.fleet_reader import FleetReader
from hetero_airflow.web.http_refusals import HttpRequestRefused


class MetricsRoute:
    """The handler. It reads the store at each scrape, so all API servers give the same answer."""

    def __init__(self, fleet: FleetReader) -> None:
        self._fleet = fleet

    def router(self) -> APIRouter:
        """The route to the handler."""
        router = APIRouter(dependencies=[Depends(check_token)])
        router.add_api_route("/metrics", self.metrics, methods=["GET"], response_model=None)
        return router

    def metrics(self, request: Request, devices: bool = True) -> Response:
        """All metrics of `hetero_airflow.metrics.catalog`, as Prometheus' text or as OpenMetrics.

        :param devices: whether to add the time series of each device
        """
        snapshot = self._fleet.store.snapshot()
        with read_transaction(self._fleet.engine()) as connection:
            reasons = count_waiting_reasons(connection)
            tallies = read_tallies(connection)
        facts = FleetFacts(
            snapshot,
            self._fleet.wanted_workers(snapshot),
            self._fleet.store.last_seen(),
            self._fleet.store.telemetry() if devices else {},
            reasons,
            datetime.now(UTC),
            tallies,
            self._fleet.store.last_decisions(),
            self._data_counts(),
        )
        text, content_type = exposition(facts, request.headers.get("Accept", ""), per_device=devices)
        return Response(text, media_type=content_type)

    def _data_counts(self) -> dict[str, CacheCounts]:
        """Of the hosts where a task has used a data cache: the others would be series of zeros."""
        counts = {worker_id: data.counts for worker_id, data in self._fleet.store.host_data().items()}
        return {worker_id: counted for worker_id, counted in counts.items() if counted != CacheCounts()}


def check_token(request: Request) -> None:
    """Refuse a scrape without the token. As a dependency, it runs before the parameters are checked.

    :raises HttpRequestRefused: the configuration has no token that can be used, or the scrape sent another one
    """
    try:
        token = metrics_token()
        found = "no such token" if token else "no [hetero] metrics_token in the configuration"
    except SettingsError as error:
        token, found = "", f"a [hetero] metrics_token with {error.found}"
    if not is_token(request.headers.get("Authorization", ""), token):
        remedy = "Set [hetero] metrics_token, and send `Authorization: Bearer TOKEN` with it"
        raise HttpRequestRefused(RefusalCode.UNAUTHENTICATED, "the metrics", found=found, remedy=remedy)
