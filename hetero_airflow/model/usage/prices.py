"""Prices of device-hours, from the option `prices`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_airflow.errors import RequestError, SettingsError, shorten
from hetero_airflow.model.devices.names import matches_model, model_tokens, parse_device
from hetero_airflow.model.usage.device_time import DEVICE_SECOND, SIMULATED
from hetero_airflow.validation import did_you_mean, json_object

MAX_PRICE = 1e6
"""The greatest price of an hour."""

_FIELDS = ("kind", "vendor", "model", "partition")
_REMEDY = 'Write it as {"nvidia/h100": 2.5, "gpu": 1, "cpu": 0.02}: a device as in a request, and a price per hour'


@dataclass(frozen=True, slots=True)
class Prices:
    """What an hour of a device costs, or an hour of a CPU's core; in any one currency.

    The most exact name counts: a model before a vendor, a vendor before a kind, and a longer name of a model before a
    shorter one. A MIG instance only has a price of its own profile.

    >>> prices = Prices.parse('{"nvidia/h100": 2.5, "gpu": 1, "mig-1g.10gb": 0.5}', "[hetero] prices")
    >>> [prices.per_hour(name, "gpu") for name in ("nvidia/h100-sxm5-80gb", "amd/mi300x", "nvidia/h100/1g.10gb")]
    [2.5, 1.0, 0.5]
    >>> prices.per_hour("generic/x86-64", "cpu") is None
    True
    """

    by_device: Mapping[str, float]
    """A device as in a request, without a quantity → price."""

    @classmethod
    def parse(cls, text: str, where: str) -> "Prices":
        """The prices in a JSON object.

        :param where: the name of the text in errors
        :raises SettingsError: the text is no such object, or names no device
        """
        prices = json_object(text, where, _REMEDY)
        for name, price in prices.items():
            _check_device(where, name)
            is_number = isinstance(price, (int, float)) and not isinstance(price, bool)
            if not is_number or not 0 <= price <= MAX_PRICE:
                option = f"{where}, {shorten(name)} = {shorten(json.dumps(price))}"
                raise SettingsError(
                    option, found="no price", remedy=f"Write a number from 0 to {MAX_PRICE:g}, without a currency"
                )
        return cls({name: float(price) for name, price in prices.items()})

    def per_hour(self, device_class: str, kind: str) -> float | None:
        """The price of an hour of a class of devices; None if no name matches."""
        vendor, model, *partition = device_class.removesuffix(SIMULATED).split("/")
        best: tuple[tuple[bool, int, bool], float] | None = None
        for name, price in self.by_device.items():
            asked = parse_device(name)
            wanted = str(asked.get("model", ""))
            if (
                asked.get("kind", kind) != kind
                or asked.get("vendor", vendor) != vendor
                or asked.get("partition", "") != "".join(partition)
                or not matches_model(wanted, model_tokens(model))
            ):
                continue
            exactness = ("model" in asked, len(wanted), "vendor" in asked)
            if best is None or exactness > best[0]:
                best = (exactness, price)
        return None if best is None else best[1]

    def cost(self, held: int, device_class: str, kind: str) -> float | None:
        """What a device-time costs; None if its devices have no price."""
        price = self.per_hour(device_class, kind)
        return None if price is None else held / (3600 * DEVICE_SECOND) * price


def _check_device(where: str, name: str) -> None:
    try:
        fields = parse_device(name)
    except RequestError as error:
        option = f"{where}, {shorten(name)}"
        hint = did_you_mean(name, ["cpu", "gpu", "npu", "tpu", "fpga"])
        raise SettingsError(option, found=error.found, remedy=f"{hint}{_REMEDY}") from None
    if not fields.keys() <= set(_FIELDS):
        option = f"{where}, {shorten(name)}"
        raise SettingsError(option, found="a device with a quantity", remedy=f"Name one device. {_REMEDY}")
