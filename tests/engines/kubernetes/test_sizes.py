"""A model has the same devices by node labels, by claims and in hetero_airflow's own matching."""

import pytest

from hetero_airflow.engines.kubernetes.claims.claim_template import device_request
from hetero_airflow.errors import RequestError
from hetero_airflow.model.device import Device, device_tokens, matches_model
from hetero_airflow.model.request import DeviceRequest
from tests.engines.kubernetes.claims.test_cel import meets
from tests.engines.kubernetes.selectors.test_node_conditions import fits

CARDS = {
    "h200-141gb": ("NVIDIA H200", 143771),
    "t4-16gb": ("Tesla T4", 15360),
    "l40s-48gb": ("NVIDIA L40S", 46068),
    "a10-24gb": ("NVIDIA A10", 23028),
    "b200-180gb": ("NVIDIA B200", 183359),
    "h100-80gb": ("NVIDIA H100 PCIe", 81559),
    "h100-sxm5": ("NVIDIA H100 80GB HBM3", 81559),
    "h100-sxm5-80gb": ("NVIDIA H100 80GB HBM3", 81559),
    "h200-sxm5": ("NVIDIA H200", 143771),
    "v100-16gb": ("Tesla V100-SXM2-16GB", 16160),
}
"""Request → name and MiB that nvidia-smi reports for the card."""


def is_met_by(request: str, name: str, mib: int) -> set[bool]:
    wanted = DeviceRequest.parse(request).alternatives[0]
    labels = {"nvidia.com/gpu.product": name.replace(" ", "-"), "nvidia.com/gpu.memory": str(mib)}
    model = name.lower().removeprefix("nvidia ").replace(" ", "-")
    device = Device(id="g", vendor="nvidia", kind="gpu", model=model, index=0, memory_bytes=mib * 2**20)
    return {
        fits(labels, request),
        meets(wanted, {"productName": name}, {"memory": mib * 2**20}),
        matches_model(wanted.model or "", device_tokens(device)),
    }


@pytest.mark.parametrize(("request_text", "card"), CARDS.items())
def test_a_nominal_size_and_a_form_factor_find_the_card(request_text, card):
    assert is_met_by(request_text, *card) == {True}


@pytest.mark.parametrize(
    ("request_text", "name", "mib"),
    [
        ("h100-80gb", "NVIDIA H100 NVL", 95830),
        ("h100-94gb", "NVIDIA H100 PCIe", 81559),
        ("h100-sxm5", "NVIDIA H100 PCIe", 81559),
        ("h200-sxm5", "NVIDIA H200 NVL", 143771),
        ("v100-32gb", "Tesla V100-SXM2-16GB", 16160),
        ("p100-16gb", "Tesla P100-PCIE-12GB", 12198),
    ],
)
def test_another_size_or_form_factor_is_not_met(request_text, name, mib):
    assert is_met_by(request_text, name, mib) == {False}


def test_a_form_factor_that_no_product_has_is_refused_by_both():
    with pytest.raises(RequestError, match="no known value of the node label"):
        fits({}, "nvidia/h100-sxm9")
    with pytest.raises(RequestError, match="no known value of the node label"):
        device_request(DeviceRequest.parse("nvidia/h100-sxm9").alternatives[0])
