"""What DRA drivers publish, read from composed slices in tests/fixtures/kubernetes: nothing is offered twice."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.engines.kubernetes.slices.pools import PoolUse, pool_devices
from hetero_airflow.engines.kubernetes.slices.resource_slices import read_slice
from hetero_airflow.engines.kubernetes.watch.nodes import with_slice_devices
from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.testing import a_cpu, a_worker
from tests.engines.kubernetes.slices.played_slices import a_slice

SLICES = json.loads((Path(__file__).parents[3] / "fixtures" / "kubernetes" / "slices.json").read_text())


def devices_of(pool, **use):
    item = read_slice(a_slice("n1", pool["devices"], driver=pool["driver"]))
    ids = {word: {f"{pool['driver']}/n1/{name}" for name in names} for word, names in use.items()}
    made = PoolUse(dict.fromkeys(ids.get("held", ()), "a claim has it"), frozenset(ids.get("leased", ())))
    return pool_devices([item], made).get("n1", ())


def leasable(pool, **use):
    return {device.id.rpartition("/")[2] for device in devices_of(pool, **use) if device.leasable}


def worker_of(pool):
    return with_slice_devices(a_worker(devices=(a_cpu(),), engine="kubernetes"), devices_of(pool))


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("amd-whole", {"gpu-1-128"}), ("amd-cpx", {"gpu-1-129", "gpu-2-130"}),
        ("amd-parts-beside-whole", {"gpu-1-129", "gpu-2-130"}), ("nvidia-vfio-twin", {"gpu-0"}),
        ("nvidia-vfio-twins", {"gpu-0", "gpu-1"}), ("nvidia-vfio-alone", {"gpu-0"}),
        ("nvidia-static-mig", {"gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-1"}), ("tpu", {"accel0", "accel1"}),
        ("intel-unhealthy", {"0000-03-00-0-0xe20b"}), ("intel-tainted", {"0000-03-00-0-0xe20b"}),
        ("intel-vfio", {"0000-03-00-0-0xe20b"}), ("gaudi", {"0000-19-00-0-0x1020"}), ("gb10", {"gpu-0"}),
        ("gaudi-nameless", set()), ("neuron-nameless", set()), ("neuron", {"neurondevice0", "neurondevice1"}),
        ("hygon", {"dcu-0"}),
    ],
)  # fmt: skip
def test_each_physical_device_is_offered_once_in_the_way_that_it_can_be_had(name, names):
    assert leasable(SLICES[name]) == names


@pytest.mark.parametrize(
    ("held", "names"), [((), ["gpu-0", "gpu-1"]), (("gpu-vfio-0",), ["gpu-0", "gpu-1", "gpu-vfio-0"])]
)
def test_the_twin_for_virtual_machines_is_shown_only_while_something_uses_it(held, names):
    assert [device.id.rpartition("/")[2] for device in devices_of(SLICES["nvidia-vfio-twins"], held=held)] == names


@pytest.mark.parametrize(
    ("name", "held", "offered"),
    [
        ("nvidia-vfio-twins", {"gpu-vfio-0"}, {"gpu-1"}),
        ("nvidia-static-mig", {"gpu-0"}, set()),
        ("nvidia-static-mig", {"gpu-0-mig-1g10gb-19-0"}, {"gpu-0-mig-1g10gb-19-1"}),
        ("neuron", {"neuronnode"}, set()),
    ],
)
def test_a_device_whose_other_form_is_in_use_is_not_offered(name, held, offered):
    assert leasable(SLICES[name], held=held) == offered
    assert leasable(SLICES[name], leased=held) == offered | held - {"gpu-vfio-0", "neuronnode"}


@pytest.mark.parametrize(
    ("name", "request_text", "other"),
    [
        ("amd-whole", "mi210", "amd/cpx-nps4"),
        ("amd-cpx", "amd/cpx-nps4:2", "mi300x"),
        ("nvidia-static-mig", "mig-1g.10gb:2", "a100"),
        ("intel-unhealthy", "intel/arc-b580", "intel/gpu:2"),
        ("gaudi", "habana/gaudi2", "gpu"),
        ("neuron", "aws/trn2:2", "aws/trn1"),
        ("hygon", "hygon/k100", "gpu"),
    ],
)
def test_devices_of_slices_are_found_by_their_names(name, request_text, other):
    answers = [check_worker(DeviceRequest.parse(text).alternatives[0], worker_of(SLICES[name]))
               for text in (request_text, other)]  # fmt: skip
    assert [answer[0] for answer in answers] == [True, False]
    assert not name.startswith("amd") or "MIG" not in str(answers)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("gaudi-nameless", ["habana: the node has devices of gaudi.intel.com that are not offered: its"]),
        ("neuron-nameless", ["aws: the node has devices of neuron.aws.com that are not offered"]),
        ("hygon", ["hygon: the node has devices of dcu.hygon.com that are not offered: its"]),
        ("intel-unhealthy", []), ("nvidia-vfio-twins", []), ("nvidia-static-mig", []), ("gb10", []),
    ],
)  # fmt: skip
def test_a_driver_that_is_not_understood_is_a_problem_line_of_the_node(name, lines):
    problems = worker_of(SLICES[name]).problems
    assert len(problems) == len(lines)
    assert all(problem.startswith(line) for problem, line in zip(problems, lines, strict=True))


@pytest.mark.parametrize("driver", ["dra.net", "compute-domain.nvidia.com", "sriovnetwork.k8snetworkplumbingwg.io"])
def test_a_driver_of_other_hardware_has_no_devices(driver):
    assert read_slice(a_slice("n1", SLICES["network"]["devices"], driver=driver)) is None


def test_a_parent_may_be_named_by_its_number_alone_and_a_pci_address_may_have_a_long_domain():
    pool = copy.deepcopy(SLICES["amd-parts-beside-whole"])
    for device in pool["devices"]:
        if "parentPciAddr" in device["attributes"]:
            device["attributes"]["parentDeviceID"] = {"string": "99"}
            del device["attributes"]["parentPciAddr"]
        else:
            device["attributes"]["deviceID"] = {"string": "99"}
    assert leasable(pool) == leasable(SLICES["amd-parts-beside-whole"])
    twins = copy.deepcopy(SLICES["nvidia-vfio-twin"])
    address = twins["devices"][0]["attributes"]["resource.kubernetes.io/pciBusID"]
    address["string"] = f"0000{address['string']}"
    assert len(devices_of(twins)) == 1


def test_a_type_that_no_container_can_be_sure_of_is_not_offered():
    pool = copy.deepcopy(SLICES["nvidia-vfio-twin"])
    pool["devices"][1]["attributes"]["type"] = pool["devices"][0]["attributes"].pop("type")
    assert leasable(pool) == set()
    assert "nvidia: the node has devices of gpu.nvidia.com" in worker_of(pool).problems[0]


@settings(max_examples=300)
@given(st.data())
def test_no_changed_attribute_makes_a_device_leasable(data):
    """An attribute is renamed, dropped or doubled, or changes places with another one of the device."""
    name = data.draw(st.sampled_from(sorted(set(SLICES) - {"network"})))
    pool = copy.deepcopy(SLICES[name])
    attributes = [device["attributes"] for device in pool["devices"]]
    first = data.draw(st.sampled_from(attributes))
    key = data.draw(st.sampled_from(sorted(first)))
    change = data.draw(st.sampled_from(["rename", "drop", "double", "move"]))
    value = first.pop(key)
    if change == "move":
        other = data.draw(st.sampled_from(sorted(first) or [key]))
        first |= {key: first.get(other, value), other: value}
    elif change != "drop":
        first |= {f"{key}x": value} | ({key: value} if change == "double" else {})
    assert leasable(pool) <= leasable(SLICES[name])
