"""ResourceSlices and ResourceClaims as drivers and Kubernetes' scheduler write them."""

DRIVER = "gpu.nvidia.com"


def a_gpu(number, model="NVIDIA A100-SXM4-80GB", memory="81920Mi", **more):
    """A whole GPU as NVIDIA's driver publishes it."""
    attributes = {
        "type": {"string": "gpu"}, "uuid": {"string": f"GPU-{number:08x}"}, "productName": {"string": model},
        "driverVersion": {"version": "580.65.6"}, "cudaDriverVersion": {"version": "13.0.0"}, "index": {"int": number},
        "resource.kubernetes.io/pciBusID": {"string": f"{number // 256:04x}:{number % 256:02x}:00.0"},
    }  # fmt: skip
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def a_slice(node, devices, driver=DRIVER, pool=None, generation=1, count=1, name="", **spec):
    """A slice of a node's pool."""
    pool = pool or node
    return {
        "metadata": {"name": name or f"{pool}-{driver}-{generation}"},
        "spec": {
            "driver": driver, "nodeName": node, "devices": devices,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}, **spec,
        },
    }  # fmt: skip


def a_claim(name, *devices, pod_uid="foreign", namespace="default", states=(), **result):
    """A claim that has devices, each given as (pool, device)."""
    results = [{"request": "devices", "driver": DRIVER, "pool": pool, "device": device} | result
               for pool, device in devices]  # fmt: skip
    return {
        "metadata": {
            "name": name, "namespace": namespace,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod_uid}],
        },
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": pod_uid}],
            "devices": list(states),
        },
    }  # fmt: skip
