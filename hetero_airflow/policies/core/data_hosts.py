"""Prefers, of equally good hosts, the one whose cache holds most of a request's data.

Data is a preference between placements that are as good for the task: it changes no order, and no request waits for it.
Delay scheduling (Zaharia et al., EuroSys 2010) also waits a little. That was tried, with expected ends and measured
speeds, and left out: a request that passes up free devices takes part in no reservation, so later requests get both
these and the ones that it waits for, and it declines devices for which others were preempted.
"""

from collections.abc import Mapping, Sequence

from hetero_airflow.matching.matcher import Fit
from hetero_airflow.matching.scoring import own_terms
from hetero_airflow.matching.worker_index import ReservedCapacity, WorkerIndex
from hetero_airflow.model.device import device_class
from hetero_airflow.model.host_data import held_name
from hetero_airflow.model.request import Alternative, DeviceRequest


class DataHosts:
    """What the hosts of a worker index hold, for one pass over the queue.

    :param held: worker id → `held_name` of an object or folder → cached bytes
    """

    def __init__(self, index: WorkerIndex, held: Mapping[str, Mapping[str, int]]) -> None:
        self._index, self._held = index, held
        self._warm: dict[str, dict[int, int]] = {}
        """Fingerprint of a request → worker → bytes of its data there, most first, then by worker."""

    def warmest(
        self,
        request: DeviceRequest,
        alternative: Alternative,
        reserved: ReservedCapacity | None,
        placement: tuple[int, Fit],
    ) -> tuple[int, Fit]:
        """The (worker, fit) as good as the given one that has most of the request's data; ties go to the given one."""
        if not request.data or not self._held:
            return placement
        warm = self._warm_workers(request)
        least = warm.get(placement[0], 0)
        results = self._index.ranking(alternative, reserved).results
        for worker, size_bytes in warm.items():
            if size_bytes <= least:
                break
            fit = results[self._index.states[worker]]
            if isinstance(fit, Fit) and self._is_as_good((worker, fit), placement):
                return worker, fit
        return placement

    def held_bytes(self, request: DeviceRequest, worker: int) -> int:
        """How many bytes of the request's data a worker's host has."""
        return self._warm_workers(request).get(worker, 0) if request.data and self._held else 0

    def _warm_workers(self, request: DeviceRequest) -> dict[int, int]:
        warm = self._warm.get(request.fingerprint)
        if warm is None:
            names = _held_names(request.data)
            sizes = {
                self._index.numbers[worker_id]: sum(held.get(name, 0) for name in names)
                for worker_id, held in self._held.items()
                if worker_id in self._index.numbers
            }
            ranked = sorted((pair for pair in sizes.items() if pair[1]), key=lambda pair: (-pair[1], pair[0]))
            warm = self._warm[request.fingerprint] = dict(ranked)
        return warm

    def _is_as_good(self, first: tuple[int, Fit], second: tuple[int, Fit]) -> bool:
        """Whether two placements are as good for the task itself, on devices of the same classes."""
        is_equal = own_terms(first[1].terms) == own_terms(second[1].terms)
        return is_equal and self._classes(*first) == self._classes(*second)

    def _classes(self, worker: int, fit: Fit) -> list[str]:
        devices = self._index.entries[worker].shape.devices
        return sorted(device_class(devices[position]) for position in fit.chosen)


def _held_names(urls: Sequence[str]) -> list[str]:
    """The names of the objects and folders, without those in another of the folders: their bytes count once.

    Nobody here knows whether a URL without a slash at its end is an object or a folder, so it has both names.
    """
    folders = {f"{url.rstrip('/')}/" for url in urls}
    outer = [folder for folder in folders if not any(folder != other and folder.startswith(other) for other in folders)]
    return [held_name(name) for folder in sorted(outer) for name in (folder, folder[:-1])]
