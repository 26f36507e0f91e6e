"""The configured network links of sites, for workers whose labels do not have them."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.devices.link_speeds import MAX_NETWORK_GBPS
from hetero_airflow.model.topology import SITE_LABEL, WIDE_AREA_LABEL
from hetero_airflow.model.worker import Worker

_LINKS = TypeAdapter(dict[str, Annotated[float, Field(gt=0, le=MAX_NETWORK_GBPS, strict=True)]])


def parse_site_links(text: str, option: str) -> dict[str, float]:
    """Site → Gbit/s, from a JSON object; `option` is its name.

    >>> parse_site_links('{"berlin": 40, "oslo": 2.5}', "[hetero] site_links")
    {'berlin': 40.0, 'oslo': 2.5}

    :raises SettingsError: the text is not such an object
    """
    try:
        return _LINKS.validate_json(text)
    except ValidationError:
        raise SettingsError(
            f"{option} = {shorten(text)}",
            found=f"no JSON object of Gbit/s, above 0 and at most {MAX_NETWORK_GBPS:g}",
            remedy='Write it as {"berlin": 40, "oslo": 10}',
        ) from None


class SiteLinks:
    """Labels workers with the speed of their site's link. Equal workers stay the same objects: policies rely on it.

    :param gbps: site → Gbit/s
    """

    def __init__(self, gbps: Mapping[str, float]) -> None:
        self._gbps = gbps
        self._labelled_workers: dict[str, tuple[Worker, Worker]] = {}
        """Worker id → the worker in the store, and the labelled one."""
        self._last: tuple[tuple[Worker, ...], tuple[Worker, ...]] = ((), ())

    def labelled(self, workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
        """The workers, labelled if their site is configured; the same object while nothing changes."""
        if not self._gbps:
            return workers
        if self._last[0] is not workers:
            self._labelled_workers = {worker.id: (worker, self._labelled(worker)) for worker in workers}
            self._last = (workers, tuple(labelled for _, labelled in self._labelled_workers.values()))
        return self._last[1]

    def _labelled(self, worker: Worker) -> Worker:
        before = self._labelled_workers.get(worker.id)
        if before is not None and before[0] is worker:
            return before[1]
        gbps = self._gbps.get(worker.labels.get(SITE_LABEL, ""))
        if gbps is None or WIDE_AREA_LABEL in worker.labels:
            return worker
        return worker.model_copy(update={"labels": {**worker.labels, WIDE_AREA_LABEL: f"{gbps:g}"}})
