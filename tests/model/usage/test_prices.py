"""Which price a device has, and what is said about wrong prices."""

import pytest

from hetero_airflow.errors import SettingsError
from hetero_airflow.model.usage.device_time import DEVICE_SECOND
from hetero_airflow.model.usage.prices import Prices

WHERE = "[hetero] prices"


@pytest.mark.parametrize(
    ("device_class", "kind", "price"),
    [
        ("nvidia/h100-sxm5-80gb", "gpu", 2.5),
        ("nvidia/h100-pcie", "gpu", 2.0),
        ("nvidia/a100-80gb", "gpu", 1.5),
        ("nvidia/a100-80gb (simulated)", "gpu", 1.5),
        ("nvidia/a10", "gpu", 1.2),
        ("amd/mi300x", "gpu", 1.0),
        ("nvidia/h100/1g.10gb", "gpu", 0.4),
        ("nvidia/h100/2g.20gb", "gpu", None),
        ("generic/epyc-9654", "cpu", 0.02),
        ("ascend/910b3", "npu", None),
    ],
)
def test_the_most_exact_name_counts(device_class, kind, price):
    text = '{"gpu": 1, "nvidia": 1.2, "a100": 1.5, "h100": 2.5, "nvidia/h100-pcie": 2, "mig-1g.10gb": 0.4, "cpu": 0.02}'
    prices = Prices.parse(text, WHERE)
    assert prices.per_hour(device_class, kind) == price
    assert prices.cost(7200 * DEVICE_SECOND, device_class, kind) == (None if price is None else 2 * price)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "found no JSON"),
        ("[" * 100_000, "found no JSON"),
        ("[1]", "found no JSON object"),
        ('{"gpu": 1, "gpu": 2}', "found no JSON object ('gpu' twice)"),
        ('{"nvidia/h100": NaN}', "NaN, which is no number"),
        ('{"nvidia/h100": Infinity}', "Infinity, which is no number"),
        ('{"nvidia/h100": 1e999}', "no price"),
        ('{"nvidia/h100": -1}', "no price. Write a number from 0"),
        ('{"nvidia/h100": "2.5 EUR"}', "no price"),
        ('{"nvidia/h100": true}', "no price"),
        ('{"nvidea/h100": 1}', "an unknown vendor"),
        ('{"gpus": 1}', 'Did you mean "gpu"'),
        ('{"gpu:2": 1}', "a device with a quantity"),
        ('{"": 1}', "no device text"),
    ],
)
def test_a_wrong_price_is_a_clear_error(text, message):
    with pytest.raises(SettingsError) as caught:
        Prices.parse(text, WHERE)
    assert WHERE in str(caught.value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600
