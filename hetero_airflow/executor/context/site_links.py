"""How fast sites reach each other, by configuration: for workers that do not say it of their site themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.link_speeds import MAX_NETWORK_GBPS
from hetero_airflow.model.topology import SITE_LABEL, WIDE_AREA_LABEL
from hetero_airflow.model.worker import Worker


def parse_site_links(text: str, asked: str) -> dict[str, float]:
    """Site → Gbit/s, from a JSON object; `asked` names the option that has it.

    >>> parse_site_links('{"berlin": 40, "oslo": 2.5}', "[hetero] site_links")
    {'berlin': 40, 'oslo': 2.5}

    :raises SettingsError: it is none
    """
    try:
        links = json.loads(text)
    except (ValueError, RecursionError):
        links = None
    if not isinstance(links, dict) or not all(map(_is_speed, links.values())):
        raise SettingsError(
            f"{asked} = {shorten(text)}",
            found=f"no JSON object of Gbit/s, above 0 and at most {MAX_NETWORK_GBPS:g}",
            remedy='Write it as {"berlin": 40, "oslo": 10}',
        )
    return links


def _is_speed(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_NETWORK_GBPS


class SiteLinks:
    """Labels workers with what their site's link carries; equal workers stay the same objects, on which policies rely.

    :param gbps: site → Gbit/s
    """

    def __init__(self, gbps: Mapping[str, float]) -> None:
        self._gbps = gbps
        self._known: dict[str, tuple[Worker, Worker]] = {}
        """Worker id → as the store has it, and labelled."""
        self._last: tuple[tuple[Worker, ...], tuple[Worker, ...]] = ((), ())

    def labelled(self, workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
        """The workers, those of a site that is configured with the label; the same object while nothing changed."""
        if not self._gbps:
            return workers
        if self._last[0] is not workers:
            self._known = {worker.id: (worker, self._labelled(worker)) for worker in workers}
            self._last = (workers, tuple(labelled for _, labelled in self._known.values()))
        return self._last[1]

    def _labelled(self, worker: Worker) -> Worker:
        before = self._known.get(worker.id)
        if before is not None and before[0] is worker:
            return before[1]
        gbps = self._gbps.get(worker.labels.get(SITE_LABEL, ""))
        if gbps is None or WIDE_AREA_LABEL in worker.labels:
            return worker
        return worker.model_copy(update={"labels": {**worker.labels, WIDE_AREA_LABEL: f"{gbps:g}"}})
