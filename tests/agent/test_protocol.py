"""What a server accepts from an agent: no impossible values, no markup, nothing unlimited."""

import json

import pytest

from hetero_airflow.agent.protocol import (
    MAX_HEARTBEAT_BYTES,
    MAX_INVENTORY_BYTES,
    Heartbeat,
    InventoryReport,
    read_body,
    valid_readings,
)
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.worker import MAX_DEVICES
from hetero_airflow.testing import a_cpu, a_device, a_worker


def report(**fields) -> dict:
    worker = a_worker(engine="celery", devices=(a_cpu(2), a_device())).model_dump(mode="json")
    return {"worker": worker | fields}


def device(**fields) -> dict:
    return report(devices=[a_device().model_dump(mode="json") | fields])


def reading(**fields) -> dict:
    return {"worker": "worker-a", "telemetry": [{"device_id": "GPU-0", **fields}]}


def test_an_inventory_comes_over_as_it_is():
    worker = a_worker(engine="celery")
    text = InventoryReport(worker=worker, telemetry=(Telemetry(device_id="GPU-0", utilization=1),)).model_dump_json(
        exclude_defaults=True
    )
    assert read_body(InventoryReport, text.encode()).worker == worker


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (report(host="<b>host</b>"), "markup"),
        (report(host="a\u202eb"), "printed"),
        (report(labels={"zone<": "a"}), "markup"),
        (report(labels={"zone": "a\x1b[31m"}), "printed"),
        (report(labels={"zone": "a" * 257}), "256"),
        (report(runtime={"torch": "<script>"}), "markup"),
        (report(engine="local"), "the scheduler's own"),
        (report(id=""), "fewer characters than 1"),
        (report(surprise=1), "an unknown field"),
        (device(memory_bytes=-1), "a number below 0"),
        (device(memory_bytes=2**60), "a number above 1"),
        (device(memory_bytes="NaN"), "no whole number"),
        (device(id="<img src=x>"), "markup"),
        (device(id="a\x00b"), "printed"),
        (device(peers=["<b>"]), "markup"),
        (device(model="A100 <b>"), "a text of another form"),
        (device(details={"<b>": 1}), "markup"),
        (device(kind="cpu", cores=[-1]), "no host has"),
        (report(devices=[{}] * (MAX_DEVICES + 1)), f"a list of {MAX_DEVICES + 1}"),
        (report(labels={str(n): "" for n in range(257)}), "257 fields"),
        (report(devices=[a_device().model_dump(mode="json")] * 2), "two devices"),
    ],
)
def test_an_inventory_that_can_not_be_is_refused_and_says_why(body, says):
    with pytest.raises(ValueError, match=says):
        read_body(InventoryReport, json.dumps(body).encode())


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '"', "null", "[]", "\ud800", '{"worker": "\\ud800"}', "1e999999"]
)
def test_a_text_that_is_no_json_object_is_refused_in_one_line(text):
    for model in (InventoryReport, Heartbeat):
        with pytest.raises(ValueError, match=r"^[^\n]{1,600}$"):
            read_body(model, text.encode(errors="surrogatepass"))


MILLION = b",".join([b"{}"] * 10**6)


@pytest.mark.parametrize("text", [b'{"worker":{"id":"a","devices":[' + MILLION + b"]}}", b"[" + MILLION + b"]"])
def test_a_million_of_anything_is_refused_without_looking_into_it(text):
    with pytest.raises(ValueError, match="a list of 1000000; none may have more than 4096"):
        read_body(InventoryReport, text)


def test_of_many_errors_the_first_is_reported():
    with pytest.raises(ValueError, match=r"^worker\.devices\.0\.id: no value$"):
        read_body(InventoryReport, json.dumps({"worker": {"id": "a", "host": "h", "devices": [{}] * 4096}}).encode())


@pytest.mark.parametrize(
    "body",
    [
        reading(memory_free_bytes=-1),
        reading(memory_free_bytes=10**400),
        reading(utilization=1.5),
        reading(power_w=float("nan")),
        reading(pcie_sent_bytes_per_s=-1),
        reading(pcie_received_bytes_per_s=2**60),
        reading(temperature_c=float("inf")),
        reading(ecc_errors=-1),
        reading(device_id="<b>"),
        {"worker": "<b>"},
        {"worker": "w" * 257},
        {"worker": "a", "inventory": "x" * 65},
        {"worker": "worker-a", "data": {"held": {"s3://lake/a": 1}}},
        {"worker": "worker-a", "data": {"counts": {"hits": -1}}},
        {"worker": "a", "telemetry": [{"device_id": "a"}] * (MAX_DEVICES + 1)},
    ],
)
def test_a_heartbeat_that_can_not_be_is_refused(body):
    with pytest.raises(ValueError, match=r"worker|telemetry|inventory|data|a list"):
        read_body(Heartbeat, json.dumps(body).encode())


def test_an_agent_that_knows_fewer_readings_is_heartbeat():
    heartbeat = read_body(Heartbeat, json.dumps(reading(power_w=70.5)).encode())
    assert heartbeat == Heartbeat(worker="worker-a", telemetry=(Telemetry(device_id="GPU-0", power_w=70.5),))
    assert (heartbeat.telemetry[0].pcie_sent_bytes_per_s, heartbeat.telemetry[0].pcie_received_bytes_per_s) == (
        None,
        None,
    )


def test_an_agent_leaves_out_readings_that_would_be_refused():
    good, bad = Telemetry(device_id="GPU-0", power_w=70), Telemetry(device_id="GPU-1", power_w=-1)
    assert valid_readings([good, bad]) == (good,)


def test_the_largest_worker_fits_into_the_limits():
    ids = [f"GPU-5a3c1f2e-8c1b-4a0e-9d52-{n:012}" for n in range(MAX_DEVICES)]
    devices = tuple(
        a_device(id_, index=n, peers=tuple(ids[n - n % 8 : n - n % 8 + 8]), details={"pcie_width": 16})
        for n, id_ in enumerate(ids)
    )
    readings = tuple(
        Telemetry(
            device_id=id_, memory_free_bytes=85520809984, utilization=0.123, temperature_c=63.5, power_w=412.5,
            pcie_sent_bytes_per_s=26_700_000_000, pcie_received_bytes_per_s=26_700_000_000, ecc_errors=0, xid=79,
        )
        for id_ in ids
    )  # fmt: skip
    whole = InventoryReport(worker=a_worker("w" * 200, devices, engine="celery"), telemetry=readings)
    assert len(whole.model_dump_json(exclude_defaults=True)) < MAX_INVENTORY_BYTES
    beat = Heartbeat(worker="w" * 200, inventory="a" * 64, telemetry=readings)
    assert len(beat.model_dump_json(exclude_defaults=True)) < MAX_HEARTBEAT_BYTES
