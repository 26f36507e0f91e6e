import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.errors import RegistryError, TraceError
from hetero_airflow.simulator.traces import TRACES, load_trace
from hetero_airflow.simulator.traces.files import VARIABLE

FILES = {
    "gavel/t.csv": "job_id,arrival_s,job_type,gpus,total_steps,thr_v100,thr_p100,thr_k80\n"
    "0,0.0,A3C,1,120.5,4.0,2.0,1.0\n1,3.5,LM (batch size 5),1,99,8.0,4.0,0.0\n2,9,A3C,1,1e3,4.0,2.0,1.0\n",
    "muri/t.csv": "job_id,num_gpu,submit_time,iterations,model_name,batch_size,iteration_time\n"
    "0,4,0,1046811,bert,4,190\n1,8,5000,20,vgg16,16,214\n2,1,5000,7,dqn,128,490\n",
    "philly/philly_2017-10.csv": "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:13:03,2951.0,8,23608,6214e9\n"
    "2017-10-10 06:13:03,7,1,7,6214e9\n",
    "openb/openb_pod_list_t.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,"
    "deletion_time,scheduled_time\np0,12000,16384,1,1000,,LS,0,125,0\np1,6000,128,1,460,T4|V100M16,BE,4,99,7\n"
    "p2,500,0,0,0,,BE,6,99,\n",
}
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,96000,393216,2,T4\nn1,8000,2048,1,V100M16\n"
NAMES = {
    "gavel/t.csv": "gavel/t", "muri/t.csv": "muri/t", "philly/philly_2017-10.csv": "philly/2017-10",
    "openb/openb_pod_list_t.csv": "openb/t",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for data_set in TRACES:
        (folder / data_set).mkdir()
    (folder / "openb" / "openb_node_list_gpu_node.csv").write_text(NODES)
    return folder


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    """The file after a typical damage."""
    lines = text.splitlines(keepends=True)
    at, second = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
    match draw(st.sampled_from(["cut", "drop", "repeat", "swap", "field", "bytes"])):
        case "cut":
            return text.encode()[: draw(st.integers(0, len(text)))]
        case "drop":
            del lines[at]
        case "repeat":
            lines.insert(second, lines[at])
        case "swap":
            lines[at], lines[second] = lines[second], lines[at]
        case "field":
            fields = lines[at].rstrip("\n").split(",")
            hostile = st.sampled_from(["nan", "inf", "-1", "0", "1e999", "", '"', "\x00", "-0", "../../etc", "9" * 99])
            fields[draw(st.integers(0, len(fields) - 1))] = draw(hostile | st.text(max_size=20))
            lines[at] = ",".join(fields) + "\n"
        case "bytes":
            where = draw(st.integers(0, len(text)))
            return text.encode()[:where] + draw(st.binary(max_size=30)) + text.encode()[where:]
    return "".join(lines).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("path", FILES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_gives_sound_jobs_or_a_short_error(folder: Path, path: str, data: st.DataObject) -> None:
    (folder / path).write_bytes(data.draw(damaged(FILES[path])))

    try:
        workload = load_trace(NAMES[path], folder)
    except TraceError as error:
        text = str(error)
        assert text.isprintable()
        assert len(text) < 1200
        return
    arrivals = [job.arrival_s for job in workload.jobs]
    assert arrivals == sorted(arrivals)
    for job in workload.jobs:
        assert 0 <= job.arrival_s < math.inf
        assert 0 < job.work < math.inf
        assert all(0 < speed < math.inf for speed in job.speeds.values())
        assert (job.id + job.task + job.group).isprintable()


@pytest.mark.parametrize("path", FILES)
def test_the_undamaged_file_has_three_jobs(folder: Path, path: str) -> None:
    (folder / path).write_text(FILES[path])

    assert len(load_trace(NAMES[path], folder).jobs) == 3


@pytest.mark.parametrize("name", ["gavel", "gavel/", "../gavel/x", "gavel/../../etc/passwd", "gavel/a/b", "", "g/\x00"])
def test_a_malformed_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(TraceError, match="no name of a trace"):
        load_trace(name, folder)


def test_an_unknown_data_set_names_the_known_ones(folder: Path) -> None:
    with pytest.raises(RegistryError, match="gavel"):
        load_trace("gabel/h300_seed0", folder)


def test_a_missing_file_names_those_that_are_there(folder: Path) -> None:
    (folder / "gavel" / "t.csv").write_text("")

    with pytest.raises(TraceError) as caught:
        load_trace("gavel/h300_seed0", folder)

    assert caught.value.found == "t.csv"
    assert "gavel/h300_seed0" in caught.value.asked


def test_a_missing_data_set_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no folder gavel"):
        load_trace("gavel/h300_seed0", tmp_path)


@pytest.mark.parametrize("value", [None, "", "/no/such/folder"])
def test_without_a_folder_the_variable_is_asked_for(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)

    with pytest.raises(TraceError, match=f"Set {VARIABLE}"):
        load_trace("gavel/h300_seed0")


def test_the_variable_names_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gavel" / "t.csv").write_text(FILES["gavel/t.csv"])
    monkeypatch.setenv(VARIABLE, str(folder))

    assert load_trace("gavel/t").name == "gavel/t"
