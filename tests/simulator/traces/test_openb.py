from pathlib import Path

import pytest

from hetero_airflow.errors import TraceError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.cluster import simulated_worker
from hetero_airflow.simulator.record import JobOutcome
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.openb import FOREVER_S
from hetero_airflow.simulator.workload import Job

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1024,2,T4\nn1,8050,2048,1,V100M16\nn2,4000,512,0,\n"
HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "openb").mkdir()
    (tmp_path / "openb" / "openb_node_list_gpu_node.csv").write_text(NODES)
    return tmp_path


def put(folder: Path, *lines: str, header: str = HEADER) -> None:
    (folder / "openb" / "openb_pod_list_t.csv").write_text(header + "".join(f"{line}\n" for line in lines))


def test_nodes_are_workers_whose_cores_are_tenths(folder: Path) -> None:
    put(folder)

    assert load_trace("openb/t", folder).workers == (
        simulated_worker("n0", {"nvidia/t4": 2}, cores=320, host_memory_bytes=2**30),
        simulated_worker("n1", {"nvidia/v100m16": 1}, cores=80, host_memory_bytes=2**31),
        simulated_worker("n2", {}, cores=40, host_memory_bytes=2**29),
    )


def test_pods_are_jobs_in_the_order_of_their_creation(folder: Path) -> None:
    put(
        folder,
        "whole,3152,1,2,1000,,LS,Running,50,90,60",
        "shared,100,0,1,460,T4|V100M16|V100M16|A10,BE,Running,40,90,40",
        "cpu,1050,2,0,0,,BE,Failed,30,30,30",
        "never,0,0,1,1000,T4,BE,Pending,20,25,",
    )

    assert load_trace("openb/t", folder).jobs == (
        Job("never", 20.0, DeviceRequest.parse({"nvidia/t4"}), 5.0, task="1x1000", group="BE"),
        Job("cpu", 30.0, DeviceRequest.parse("cpu:11", quota={"host_memory": 2**21}), 1.0, task="0x0", group="BE"),
        Job(
            "shared", 40.0, DeviceRequest.parse({"nvidia/t4", "nvidia/v100m16"}, quota={"share": 0.46, "cpus": 1}),
            50.0, task="1x460", group="BE",
        ),
        Job(
            "whole", 50.0, DeviceRequest.parse("gpu:2", quota={"cpus": 32, "host_memory": 2**20}), 30.0,
            task="2x1000", group="LS",
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("p,1,1,1,1000,H100,LS,Running,0,9,0", "gpu_spec"),
        ("p,1,1,1,1000,T4||,LS,Running,0,9,0", "gpu_spec"),
        ("p,1,1,2,500,,LS,Running,0,9,0", "gpu_milli"),
        ("p,1,1,0,500,,LS,Running,0,9,0", "gpu_milli"),
        ("p,1,1,1,0,,LS,Running,0,9,0", "gpu_milli"),
        ("p,1,1,1,1001,,LS,Running,0,9,0", "gpu_milli"),
        ("p,0,1,0,0,,LS,Running,0,9,0", "cpu_milli"),
        ("p,1,1,1,1000,,LS,Running,5,4,5", "deletion_time"),
        ("p,1,1,1,1000,,LS,Running,5,9,4", "deletion_time"),
        ("p,1,1,1,1000,,LS,Running,,9,4", "creation_time"),
    ],
)
def test_a_pod_that_cannot_be_right_is_refused(folder: Path, line: str, field: str) -> None:
    put(folder, line)

    with pytest.raises(TraceError) as caught:
        load_trace("openb/t", folder)

    assert (caught.value.line, caught.value.field) == (2, field)


def test_a_node_twice_is_refused(folder: Path) -> None:
    put(folder)
    (folder / "openb" / "openb_node_list_gpu_node.csv").write_text(NODES + "n1,8000,2048,1,V100M16\n")

    with pytest.raises(TraceError, match="the same in line 3"):
        load_trace("openb/t", folder)


def test_a_list_without_times_can_only_be_filled(folder: Path) -> None:
    put(folder, "p,1000,1,1,1000", header="name,cpu_milli,memory_mib,num_gpu,gpu_milli\n")

    assert len(load_trace("openb/t_fill1_seed1", folder).jobs) == 3
    with pytest.raises(TraceError, match=r"Use openb/t_fill1\.3_seed42"):
        load_trace("openb/t", folder)


@pytest.mark.parametrize("demand", [0.5, 1.3, 4.0])
def test_filling_asks_for_just_less_than_the_demand(folder: Path, demand: float) -> None:
    put(folder, *(f"p{i},1000,1,1,{100 + i},,LS,Running,{i},99,{i}" for i in range(20)))

    jobs = load_trace(f"openb/t_fill{demand}_seed7", folder).jobs

    requested = sum(job.request.alternatives[0].accelerators for job in jobs)
    assert demand * 3 - 0.12 <= requested <= demand * 3
    assert [job.arrival_s for job in jobs] == [float(second) for second in range(len(jobs))]
    assert {(job.work, job.patience_s) for job in jobs} == {(FOREVER_S, 0.0)}


def test_the_same_seed_fills_alike_and_another_does_not(folder: Path) -> None:
    put(folder, *(f"p{i},1000,1,1,{100 + i},,LS,Running,{i},99,{i}" for i in range(20)))

    first, again, other_seed = (load_trace(f"openb/t_fill1.3_seed{seed}", folder).jobs for seed in (7, 7, 8))

    assert first == again
    assert first != other_seed


@pytest.mark.parametrize("demand", ["0", "11", "99.9"])
def test_a_demand_out_of_bounds_is_refused(folder: Path, demand: str) -> None:
    put(folder, "p,1000,1,1,1000,,LS,Running,0,9,0")

    with pytest.raises(TraceError, match="a demand outside"):
        load_trace(f"openb/t_fill{demand}_seed7", folder)


def test_the_published_mixes_are_read(public_traces: Path) -> None:
    lists = sorted((public_traces / "openb").glob("openb_pod_list_*.csv.gz"))
    assert lists
    for path in lists[::5]:  # of each family of mixes
        mix = path.name.removeprefix("openb_pod_list_").removesuffix(".csv.gz")
        workload = load_trace(f"openb/{mix}_fill1.3_seed42", public_traces)
        devices = sum(device.kind == "gpu" for worker in workload.workers for device in worker.devices)
        assert (len(workload.workers), devices) == (1213, 6212)
        assert sum(job.request.alternatives[0].accelerators for job in workload.jobs) == pytest.approx(
            1.3 * 6212, rel=0.001
        )


def test_a_filled_cluster_is_simulated_to_its_end(folder: Path) -> None:
    put(folder, *(f"p{i},1000,1,1,1000,,LS,Running,{i},99,{i}" for i in range(4)))
    workload = load_trace("openb/t_fill2_seed7", folder)

    record = Simulation(workload, (), Fifo(), "fifo").run()

    assert [job.outcome for job in record.jobs] == [JobOutcome.FINISHED] * 3 + [JobOutcome.LEFT] * 3
