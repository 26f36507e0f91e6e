import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.engines.kubernetes.claims.claim_template import PIN_KEY
from hetero_airflow.engines.kubernetes.slices.allocations import read_allocation
from hetero_airflow.engines.kubernetes.slices.pools import Pools, pool_devices, pool_uses
from hetero_airflow.engines.kubernetes.slices.resource_slices import read_slice
from tests.engines.kubernetes.slices.played_slices import a_claim, a_gpu, a_slice


def devices_of(*slices, node="n1", claims=(), leased=None, classes=None):
    uses = pool_uses([read_allocation(claim) for claim in claims], leased or {})
    return Pools().by_node([read_slice(item) for item in slices], uses, classes).get(node, ())


def leasable(*slices, **arguments):
    return [device.id.rpartition("/")[2] for device in devices_of(*slices, **arguments) if device.leasable]


def problem(*slices, **arguments):
    return devices_of(*slices, **arguments)[0].problem


def test_a_gpu_of_a_slice_is_a_device_with_what_the_driver_says():
    (device,) = devices_of(a_slice("n1", [a_gpu(0)]), classes={"gpu.nvidia.com"})
    assert (device.id, device.vendor, device.kind) == ("gpu.nvidia.com/n1/gpu-0", "nvidia", "gpu")
    assert (device.model, device.memory_bytes, device.driver) == ("a100-sxm4-80gb", 80 * 2**30, "580.65.6")
    assert (device.leasable, device.details[PIN_KEY]) == (True, "uuid")


@pytest.mark.parametrize(
    ("driver", "attributes", "expected"),
    [
        ("gpu.amd.com", {"type": {"string": "amdgpu"}, "productName": {"string": "AMD_Instinct_MI300X_OAM"},
                         "pciAddr": {"string": "0003:00:01.0"}}, ("amd", "gpu", "instinct-mi300x-oam")),
        ("tpu.google.com", {"accelerator": {"string": "tpu-v6e-slice"}, "index": {"int": 0}}, ("google", "tpu", "v6e")),
        ("npu.huawei.com", {"model": {"string": "910B3"}, "uuid": {"string": "x"}}, ("ascend", "npu", "910b3")),
        ("gpu.intel.com", {"model": {"string": "A770"}, "pciAddress": {"string": "0"}}, ("intel", "gpu", "a770")),
    ],
)  # fmt: skip
def test_each_drivers_names_are_read(driver, attributes, expected):
    (device,) = devices_of(a_slice("n1", [{"name": "d", "attributes": attributes}], driver=driver))
    assert (device.vendor, device.kind, device.model) == expected
    assert device.leasable


def test_network_cards_are_no_devices():
    assert read_slice(a_slice("n1", [{"name": "eth0"}], driver="dra.net")) is None


def test_only_the_newest_generation_of_a_pool_counts_and_only_if_it_is_complete():
    old, new = a_slice("n1", [a_gpu(0), a_gpu(1)]), a_slice("n1", [a_gpu(1)], generation=2, count=2)
    assert problem(old, new) == "its driver has published 1 of 2 slices of its pool"
    rest = a_slice("n1", [a_gpu(2)], generation=2, count=2, name="rest")
    assert leasable(old, new, rest) == ["gpu-1", "gpu-2"]


def test_devices_belong_to_the_one_node_that_reaches_them():
    one = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
    assert leasable(a_slice(None, [a_gpu(0)], pool="p", nodeSelector=one)) == ["gpu-0"]
    each = [a_gpu(0, nodeName="n1"), a_gpu(1, nodeName="n2"), a_gpu(2, allNodes=True)]
    assert leasable(a_slice(None, each, pool="p", perDeviceNodeSelection=True)) == ["gpu-0"]
    assert leasable(a_slice(None, [a_gpu(0)], pool="p", allNodes=True)) == []


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (a_gpu(0, taints=[{"key": "xid", "value": "79", "effect": "NoExecute"}]), "device taints: xid=79:NoExecute"),
        (a_gpu(0, allowMultipleAllocations=True), "several claims may share it"),
        ({"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}, "no attribute that tells it apart"),
    ],
)
def test_a_device_that_can_not_be_had_as_a_whole_is_shown_with_the_reason(device, text):
    assert text in problem(a_slice("n1", [device]))


def test_a_taint_without_effect_on_claims_keeps_nothing_away():
    assert leasable(a_slice("n1", [a_gpu(0, taints=[{"key": "a", "effect": "None"}])])) == ["gpu-0"]


def test_a_class_that_the_cluster_lacks_is_the_reason():
    assert (
        problem(a_slice("n1", [a_gpu(0)]), classes={"gpu.amd.com"}) == "the cluster has no DeviceClass gpu.nvidia.com"
    )


def test_devices_of_other_claims_are_not_offered_and_those_of_administrators_are():
    gpus = a_slice("n1", [a_gpu(0), a_gpu(1)])
    assert leasable(gpus, claims=[a_claim("c", ("n1", "gpu-0"))]) == ["gpu-1"]
    assert problem(gpus, claims=[a_claim("c", ("n1", "gpu-0"))]) == "the claim default/c has it"
    assert leasable(gpus, claims=[a_claim("c", ("n1", "gpu-0"), adminAccess=True)]) == ["gpu-0", "gpu-1"]


def test_the_device_of_a_lease_stays_offered_to_the_lease_and_another_one_of_its_pod_does_not():
    gpus, ours = a_slice("n1", [a_gpu(0), a_gpu(1)]), {"uid-1": frozenset({"gpu.nvidia.com/n1/gpu-0"})}
    assert leasable(gpus, claims=[a_claim("c", ("n1", "gpu-0"), pod_uid="uid-1")], leased=ours) == ["gpu-0", "gpu-1"]
    assert leasable(gpus, claims=[a_claim("c", ("n1", "gpu-1"), pod_uid="uid-1")], leased=ours) == ["gpu-0"]


def a_partitioned_gpu(*, with_uuids=True):
    """NVIDIA's driver gives the partitions that it makes on demand no uuid."""
    counters = {"memory": {"value": "80Gi"}}
    half = {"counterSet": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}

    def part(name, amount="40Gi"):
        device = a_gpu(0, consumesCounters=[{**half, "counters": {"memory": {"value": amount}}}])
        attributes = device["attributes"] | {"profile": {"string": "3g.40gb"}}
        attributes["parentUUID"] = attributes.pop("uuid")
        del attributes["index"]
        uuid = {"uuid": {"string": name}} if with_uuids else {}
        return device | {"name": name, "attributes": attributes | uuid}

    whole = a_gpu(0, consumesCounters=[{"counterSet": "gpu-0", "counters": counters}])
    return (
        a_slice("n1", [whole, part("mig-0"), part("mig-1")], count=2),
        a_slice("n1", [], count=2, name="counters", sharedCounters=[{"name": "gpu-0", "counters": counters}]),
    )


def test_a_gpu_is_offered_as_a_whole_until_a_part_of_it_is_in_use():
    slices = a_partitioned_gpu()
    assert leasable(*slices) == ["gpu-0"]
    assert leasable(*slices, claims=[a_claim("c", ("n1", "mig-0"))]) == ["mig-1"]
    assert leasable(*slices, claims=[a_claim("c", ("n1", "gpu-0"))]) == []


def test_partitions_that_nothing_tells_apart_take_no_whole_gpu_away():
    slices = a_partitioned_gpu(with_uuids=False)
    assert leasable(*slices) == ["gpu-0"]
    assert leasable(*slices, claims=[a_claim("c", ("n1", "mig-0"))]) == []
    assert "no attribute that tells it apart" in devices_of(*slices)[1].problem


def test_a_hostile_driver_hides_no_other_device():
    many = a_gpu(0, capacity={"memory": {"value": "many"}})
    many["attributes"] |= {f"a{number}": {"string": "x" * 1000} for number in range(10_000)}
    (device,) = devices_of(a_slice("n1", [many]))
    assert (device.memory_bytes, device.leasable) == (None, True)
    (device,) = devices_of(a_slice("n1", [a_gpu(0, capacity={"memory": {"value": "9" * 30}})]))
    assert device.memory_bytes > 0
    assert problem(a_slice("n1", [a_gpu(0), a_gpu(0)])) == "its driver publishes two devices with the name gpu-0"
    assert len(devices_of(a_slice("n1", [a_gpu(number) for number in range(10_000)]))) == 128


def test_an_unchanged_pool_is_not_read_again():
    pools, slices = Pools(), [read_slice(a_slice(f"n{number}", [a_gpu(0)])) for number in range(2)]
    first = pools.by_node(slices, {}, None)
    second = pools.by_node([slices[0], read_slice(a_slice("n1", [a_gpu(1)]))], {}, None)
    assert second["n0"] is first["n0"]
    assert second["n1"] is not first["n1"]


def test_binding_conditions_and_states_of_devices_are_told():
    claim = a_claim("c", ("n1", "gpu-0"), bindingConditions=["attached"], bindingFailureConditions=["failed"])
    assert read_allocation(claim).problem == "gpu.nvidia.com/n1/gpu-0 is being prepared: attached"
    state = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
    claim["status"]["devices"] = [{**state, "conditions": [{"type": "attached", "status": "True"}]}]
    assert read_allocation(claim).problem == ""
    claim["status"]["devices"] = [{**state, "conditions": [{"type": "failed", "status": "True", "message": "no link"}]}]
    assert read_allocation(claim).problem.startswith("gpu.nvidia.com/n1/gpu-0 can't be prepared: no link")


def test_a_claim_without_devices_is_none():
    assert read_allocation({"metadata": {"name": "c"}, "spec": {}}) is None
    assert pool_devices([read_slice(a_slice("n1", []))]) == {}


@pytest.mark.parametrize(
    ("name", "model"), [("NVIDIA  A100", "a100"), ("NVIDIA (R) A100", "r--a100"), ("NVIDIA", "nvidia"), ("", "unknown")]
)
def test_any_spelling_of_a_product_is_a_model(name, model):
    assert devices_of(a_slice("n1", [a_gpu(0, model=name)]))[0].model == model


@given(
    st.sampled_from(["productName", "uuid", "driverVersion", "cudaComputeCapability", "profile", "index"]),
    st.text(max_size=64) | st.text("NVIDIAnvidia -.+()", max_size=64) | st.integers() | st.booleans(),
)
def test_no_attribute_of_one_pool_hides_the_devices_of_another(name, value):
    hostile = a_gpu(0)
    hostile["attributes"][name] = {"string": value}
    assert leasable(a_slice("n1", [hostile], pool="a"), a_slice("n1", [a_gpu(1)], pool="b"))[-1] == "gpu-1"


def test_a_pool_that_can_not_be_read_is_told_once_and_costs_only_itself(caplog):
    odd = {"counterSet": "c", "counters": {"memory": {"value": "NaN"}}}
    bad = a_slice("n1", [a_gpu(0, consumesCounters=[odd])], pool="a", sharedCounters=[{**odd, "name": "c"}])
    pools = Pools()
    for _ in range(2):
        found = pools.by_node([read_slice(bad), read_slice(a_slice("n1", [a_gpu(1)], pool="b"))], {}, None)
        assert [device.id for device in found["n1"]] == ["gpu.nvidia.com/b/gpu-1"]
    assert caplog.text.count("The pool a of gpu.nvidia.com") == 1
