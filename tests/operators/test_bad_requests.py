"""What people write by mistake: each text is refused where the DAG file is parsed, and names the nearest valid form."""

import re
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.errors import RequestError, as_sentence
from hetero_airflow.model.gang import parse_gang
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.operators.checkpoints import CheckpointArguments

BAD_REQUESTS: list[tuple[dict[str, Any], str, str]] = [
    # the word of a device
    ({"device": "gpuu"}, "device", '"gpu"'),
    ({"device": "gpus"}, "device", '"gpu"'),
    ({"device": "cpus:4"}, "device", '"cpu:4"'),
    ({"device": "a1000:2"}, "device", '"a100:2"'),
    ({"device": "nvida"}, "device", '"nvidia"'),
    ({"device": "ascned"}, "device", '"ascend"'),
    ({"device": "gogle"}, "device", '"google"'),
    ({"device": "cuda"}, "device", '"nvidia"'),
    ({"device": "cuda:0"}, "device", '"nvidia"'),
    ({"device": "rocm"}, "device", '"amd"'),
    ({"device": "huawei"}, "device", '"ascend"'),
    ({"device": "cores:4"}, "device", '"cpu:4"'),
    ({"device": "accelerator"}, "device", '"gpu"'),
    ({"device": "whatever"}, "device", "Use a kind (cpu, gpu"),
    ({"device": "80"}, "device", '"gpu:2"'),
    # another tool's grammar, and models that nobody makes
    ({"device": "tpu-v5litepod-4"}, "device", '"google/v5e:4"'),
    ({"device": "v4-8"}, "device", '"google/v4:4"'),
    ({"device": "gpu:a100:2"}, "device", '"a100:2"'),
    ({"device": "nvidia.com/gpu:1"}, "device", '"nvidia/gpu:1"'),
    ({"device": "nvidia.com/mig-1g.10gb:2"}, "device", '"mig-1g.10gb:2"'),
    ({"device": "huawei.com/Ascend910:8"}, "device", '"ascend/npu:8"'),
    ({"device": "npu:310P"}, "device", '"ascend/310p"'),
    ({"device": "gpu:"}, "device", "the quantity '' Give a whole number"),
    ({"device": "xpu"}, "device", '"intel/gpu"'),
    ({"device": "h100-sxm9"}, "device", '"h100"'),
    ({"device": "rtx 4090"}, "device", '"rtx-4090"'),
    ({"device": "rtx3090ti"}, "device", '"geforce-rtx-3090-ti"'),
    ({"device": "a40-8q"}, "device", '"nvidia/a40-8q"'),
    ({"device": "tpu7x"}, "device", '"google/v7x"'),
    ({"device": "tpu-v5-lite-podslice"}, "device", '"google/v5e"'),
    ({"device": "gres/gpu:a100:2"}, "device", '"a100:2"'),
    ({"device": "huawei.com/Ascend910B4:2"}, "device", '"ascend/910b4:2"'),
    ({"device": "hygon.com/dcu:1"}, "device", '"hygon/dcu:1"'),
    ({"device": "huawei/910b"}, "device", '"ascend/910b"'),
    ({"device": "80gb"}, "device", '"vendor/80gb"'),
    ({"device": "ti"}, "device", '"vendor/ti"'),
    ({"device": "x9000"}, "device", '"vendor/x9000"'),
    # vendor/model
    ({"device": "nvidea/a100"}, "device", '"nvidia/a100"'),
    ({"device": "nvdia/h100:2"}, "device", '"nvidia/h100"'),
    ({"device": "ascnd/910b"}, "device", '"ascend/910b"'),
    ({"device": "googel/v5e"}, "device", '"google/v5e"'),
    ({"device": "amd/a100"}, "device", '"nvidia/a100"'),
    ({"device": "nvidia/mi300x"}, "device", '"amd/mi300x"'),
    ({"device": "amd/mig-1g.10gb"}, "device", '"mig-1g.10gb"'),
    ({"device": "nvidia/"}, "device", '"nvidia/a100:1"'),
    ({"device": "/a100"}, "device", '"nvidia/a100:1"'),
    ({"device": "nvidia/a100/80gb"}, "device", '"nvidia/a100:1"'),
    ({"device": "nvidia a100"}, "device", '"nvidia-a100"'),
    ({"device": "A100 80GB"}, "device", '"a100-80gb"'),
    # several devices, and the count, in one text
    ({"device": "gpu,cpu"}, "device", '["gpu", "cpu"]'),
    ({"device": "gpu, cpu:8"}, "device", '["gpu", "cpu:8"]'),
    ({"device": "gpu|npu"}, "device", '["gpu", "npu"]'),
    ({"device": "h100:2 or a100:4"}, "device", '["h100:2", "a100:4"]'),
    ({"device": "gpu and cpu"}, "device", '["gpu", "cpu"]'),
    ({"device": "gpu;tpu"}, "device", '["gpu", "tpu"]'),
    ({"device": "2 gpu"}, "device", '"gpu:2"'),
    ({"device": "2xa100"}, "device", '"a100:2"'),
    ({"device": "2 × h100"}, "device", '"h100:2"'),
    ({"device": "2:gpu"}, "device", '"gpu:2"'),
    ({"device": "gpu 2"}, "device", '"gpu:2"'),
    ({"device": "gpu=2"}, "device", '"gpu:2"'),
    ({"device": "gpu*2"}, "device", '"gpu:2"'),
    ({"device": "gpu x 2"}, "device", '"gpu:2"'),
    ({"device": "gpu@2"}, "device", '"gpu:2"'),
    ({"device": "gpu(2)"}, "device", '"gpu:2"'),
    ({"device": "gpu[2]"}, "device", '"gpu:2"'),
    ({"device": "gpu:two"}, "device", '"gpu:2"'),
    ({"device": "npu:"}, "device", '"npu:2"'),
    ({"device": "gpu:0"}, "device", '"gpu:2"'),
    ({"device": "gpu:-1"}, "device", "the quantity '-1' Give a whole number of devices (\"gpu:2\")"),
    ({"device": "gpu:1.5"}, "device", '"gpu:0.5"'),
    ({"device": "gpu:50%"}, "device", '"gpu:0.5"'),
    ({"device": "gpu:2:3"}, "device", '"gpu:2"'),
    ({"device": "gpu:5000"}, "count", "from 1 to 4096"),
    ({"device": "gpu" * 100}, "device", "the limit of 256"),
    ({"device": ""}, "device", '"gpu:2"'),
    # other types
    ({"device": 2}, "device", '"gpu:2"'),
    ({"device": 3.14}, "device", '"gpu:2"'),
    ({"device": None}, "device", '"gpu:2"'),
    ({"device": []}, "device", '"gpu:2"'),
    ({"device": ["gpu"] * 17}, "device", "the limit of 16"),
    ({"device": [["gpu"]]}, "device", '"gpu:2"'),
    ({"device": {"gpu": 2}}, "device['gpu']", "device"),
    ({"device": {"count": 2}}, "device", '{"device": "gpu", "count": 2}'),
    ({"device": {"device": "gpu", "vram": "24GiB"}}, "device['vram']", '"memory"'),
    ({"device": {"device": "gpu", "modle": "a100"}}, "device['modle']", '"model"'),
    ({"device": {"vendor": "NVIDIA"}}, "vendor", '"nvidia"'),
    ({"device": {"kind": "GPU"}}, "kind", '"gpu"'),
    ({"device": {"model": "A100 80GB"}}, "model", '"a100-80gb"'),
    ({"device": {"device": "gpu:2", "count": 3}}, "count", "Give it once"),
    # the quota
    ({"quota": "2"}, "quota", '{"cpus": 8}'),
    ({"quota": {"mem": "24GiB"}}, "quota['mem']", '"memory"'),
    ({"quota": {"ram": "24GiB"}}, "quota['ram']", '"host_memory"'),
    ({"quota": {"cores": 8}}, "quota['cores']", '"cpus"'),
    ({"quota": {"gpus": 2}}, "quota['gpus']", '"count"'),
    ({"quota": {"hostmemory": "1GiB"}}, "quota['hostmemory']", '"host_memory"'),
    ({"quota": {"count": "2"}}, "count", "whole number from 1 to 4096"),
    ({"quota": {"count": 0}}, "count", "whole number from 1 to 4096"),
    ({"quota": {"count": 2.5}}, "count", "whole number from 1 to 4096"),
    ({"quota": {"share": 1.5}}, "share", "such as 0.5"),
    ({"quota": {"share": "half"}}, "share", "such as 0.5"),
    ({"quota": {"memory": "80"}}, "memory", '"80GiB"'),
    ({"quota": {"memory": 80}}, "memory", '"80GiB"'),
    ({"device": {"device": "gpu", "memory": 80}}, "memory", '"80GiB"'),
    ({"quota": {"host_memory": "64"}}, "host_memory", '"64GiB"'),
    ({"quota": {"host_memory": 64}}, "host_memory", '"64GiB"'),
    ({"quota": {"memory": "40..80"}}, "memory", '"40GiB"'),
    ({"quota": {"memory": "40G"}}, "memory", '"40GB"'),
    ({"quota": {"memory": "40 gigs"}}, "memory", '"40GB"'),
    ({"quota": {"memory": "lots"}}, "memory", '"40GiB"'),
    ({"quota": {"memory": "0GiB"}}, "memory", '"40GiB"'),
    ({"quota": {"memory": "80GiB..40GiB"}}, "memory", '"40GiB..80GiB"'),
    ({"quota": {"memory": "9999TiB"}}, "memory", "the limit of 1024TiB"),
    ({"device": "cpu:8", "quota": {"memory": "8GiB"}}, "memory", "host_memory"),
    ({"device": "gpu:2", "quota": {"share": 0.5}}, "share", "Leave the count out"),
    # conditions
    ({"runtime": "cuda"}, "runtime", '{"cuda": ">=12.4"}'),
    ({"runtime": {"cuda": "12.4"}}, "runtime['cuda']", '">=12.4"'),
    ({"runtime": {"cuda": 12.4}}, "runtime['cuda']", '">=12.4"'),
    ({"runtime": {"torch": "=>2.9"}}, "runtime['torch']", '">=2.9"'),
    ({"runtime": {"torch": "=2.9"}}, "runtime['torch']", '"==2.9"'),
    ({"runtime": {"torch": "^2.9"}}, "runtime['torch']", '">=2.9"'),
    ({"runtime": {str(number): ">=1" for number in range(33)}}, "runtime", "the limit of 32"),
    ({"driver": 550}, "driver", '">=550"'),
    ({"driver": "550+"}, "driver", '">=550"'),
    ({"labels": "zone=a"}, "labels", '{"zone": "a"}'),
    ({"labels": {"rack": 7}}, "labels['rack']", '"7"'),
    ({"labels": {"zone": "!"}}, "labels['zone']", '"!7"'),
    ({"topology": "nvlnk"}, "topology", '"nvlink"'),
    ({"topology": "rak@10m"}, "topology", '"rack"'),
    ({"topology": "nvlink@10 minutes"}, "topology", '"10m"'),
    ({"topology": True}, "topology", '"nvlink@10m"'),
    ({"device": {"device": "gpu", "architecture": "x86"}}, "architecture", '"x86-64"'),
    ({"device": {"device": "gpu", "architecture": 64}}, "architecture", "Use x86-64, aarch64"),
    ({"device": {"kind": "gpuu"}}, "kind", '"gpu"'),
    ({"device": {"kind": "dcu"}}, "kind", "any other kind needs its vendor"),
    ({"device": {"vendor": "amd", "model": "a100"}}, "vendor", '"nvidia"'),
    ({"device": {"kind": "npu", "model": "a100"}}, "kind", '"gpu"'),
    ({"device": {"kind": "gpu", "partition": "cpx-nps5"}}, "partition", '"cpx-nps4"'),
    ({"labels": {"spot": True}}, "labels['spot']", '"true"'),
    ({"labels": {"zone": ["a", "b"]}}, "labels['zone']", '"!7,8"'),
    ({"labels": {"zone": None}}, "labels['zone']", "leave the label out"),
    ({"quota": {"host_memory": "64GiB.."}}, "host_memory", '"64GiB"'),
    ({"wait_timeout": "1h30m"}, "wait_timeout", '"90m"'),
    ({"wait_timeout": "2d12h"}, "wait_timeout", '"60h"'),
    ({"spot": "no"}, "spot", "False for no spot worker"),
    ({"spot": 0}, "spot", "False for no spot worker"),
    ({"patience": "no"}, "patience", "Write False to take devices"),
    ({"data": "s3a://lake/train/"}, "data", '"s3"'),
    ({"data": "lake/train"}, "data", "s3://bucket/key"),
    ({"data": {"s3://lake/train/"}}, "data", '["s3://lake/train/", "s3://lake/labels.csv"]'),
    ({"data": [f"s3://lake/{number}" for number in range(33)]}, "data", "Name their folder"),
    ({"data": f"s3://lake/{'a' * 1024}"}, "data", "Name its folder"),
    ({"spot": False, "labels": {"hetero/spot": "true"}}, "spot", "Leave one of the two out"),
    ({"priority": "hihg"}, "priority", '"high"'),
    ({"priority": "High"}, "priority", '"high"'),
    ({"priority": "normal"}, "priority", "urgent, high, medium, low"),
    ({"priority": 10}, "priority", "urgent, high, medium, low"),
    ({"wait_timeout": "2 hours"}, "wait_timeout", '"2h"'),
    ({"wait_timeout": "30min"}, "wait_timeout", '"30m"'),
    ({"wait_timeout": "soon"}, "wait_timeout", '"30m"'),
    ({"wait_timeout": 0}, "wait_timeout", '"30m"'),
    ({"wait_timeout": "500d"}, "wait_timeout", "the limit of 366 days"),
    ({"gang": "four"}, "gang", '"2:4"'),
    ({"gang": 0}, "gang", '"2:4"'),
    ({"gang": "4:2"}, "gang", '"2:4"'),
    ({"gang": 5000}, "gang", "the limit of 1024"),
    ({"gang": "4@10m"}, "gang", '"2:4@10m"'),
    ({"checkpoint": "s3://bucket"}, "checkpoint", "Give a mapping with any of url"),
    ({"checkpoint": {"keep": 3}}, "checkpoint['keep']", '"keep_last"'),
    ({"checkpoint": {"keep_last": "3"}}, "checkpoint.keep_last", "whole number from 1"),
    ({"checkpoint": {"keep_last": 0}}, "checkpoint.keep_last", "whole number from 1"),
    ({"checkpoint": {"keep_best": "loss"}}, "checkpoint.keep_best", '"min:loss"'),
    ({"checkpoint": {"on_clear": "restart"}}, "checkpoint.on_clear", '"fresh" or "resume"'),
]

PYDANTIC = re.compile(
    r"pydantic|Input should be|Value error|validation error|String should|valid (integer|string|number)|type=|ctx"
)


def parse(arguments: dict[str, Any]) -> None:
    """Parse the arguments as an operator does."""
    request = {"device": "gpu", **arguments}
    parse_gang(request.pop("gang", None))
    CheckpointArguments.parse(request.pop("checkpoint", None))
    DeviceRequest.parse(**request)


def check_text(error: RequestError) -> None:
    """It is a sentence, names the field and the value, repeats nothing and has no words of pydantic."""
    asked, _, rest = str(error).partition(" can't be used; found ")
    assert asked == f"{error.field}={error.value}"
    assert rest == f"{error.found}. {as_sentence(error.remedy)}"
    assert not PYDANTIC.search(f"{error.found} {error.remedy}")
    assert error.found not in (error.value, repr(error.value))


@pytest.mark.parametrize(
    ("arguments", "field", "nearest"), BAD_REQUESTS, ids=[repr(row[0])[:60] for row in BAD_REQUESTS]
)
def test_a_bad_request_names_the_field_the_value_and_the_nearest_valid_form(
    arguments: dict[str, Any], field: str, nearest: str
) -> None:
    with pytest.raises(RequestError) as caught:
        parse(arguments)
    check_text(caught.value)
    assert caught.value.field == field
    assert nearest in f"{caught.value.found} {caught.value.remedy}"


def test_there_are_a_hundred_of_them() -> None:
    assert len(BAD_REQUESTS) >= 100


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(["gpu", "a100", "nvidia/a100", "cpu", "nvidea/a100", "cuda", "80", "40G", "2 hours", ">=12"])
NEAR_MISSES = st.tuples(WORDS, st.sampled_from("?,:/x =@0.-5"), WORDS).map("".join)
FIELDS = [
    "device", "quota", "runtime", "driver", "labels", "topology", "spot", "priority", "wait_timeout",
    "patience", "data", "gang",
    "checkpoint",
]  # fmt: skip
QUOTAS = st.dictionaries(
    st.sampled_from(["count", "share", "memory", "cpus", "host_memory", "mem", "device", "modle"]), ANYTHING | WORDS
)


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING | NEAR_MISSES | QUOTAS, min_size=1))
def test_any_bad_request_is_refused_in_plain_words(arguments: dict[str, Any]) -> None:
    try:
        parse(arguments)
    except RequestError as error:
        check_text(error)


@pytest.mark.parametrize(
    "arguments",
    [
        {"device": "acme/x1"},
        {"device": {"vendor": "amdx", "model": "x1"}},
        {"device": {"vendor": "hygon", "kind": "dcu"}},
        {"device": {"vendor": "amd", "partition": "cpx-nps4"}},
        {"device": {"kind": "gpu", "model": "a100", "partition": "3g.20gb"}},
        {"device": "intel/max-1550"},
        {"device": "acme/x9000:2"},
        {"quota": {"memory": 40 * 2**30, "host_memory": 8 * 2**30}},
        {"quota": {"memory": "512KiB"}},
    ],
)
def test_new_names_and_sizes_in_bytes_stay_valid(arguments: dict[str, Any]) -> None:
    parse(arguments)


DAG_FILE = """
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG
from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator, task
def f(x): ...
with DAG("a_dag", schedule=None):
    {statement}
"""

PLAIN = 'DevicePythonOperator(task_id="t", python_callable=print, device={device}, {rest})'
MAPPED = 'DeviceBashOperator.partial(task_id="t", device={device}, {rest}).expand(bash_command=["a"])'


@pytest.fixture
def import_errors(tmp_path):
    def _import_errors(statement):
        (tmp_path / "a_dag.py").write_text(DAG_FILE.format(statement=statement))
        return list(DagBag(tmp_path).import_errors.values())

    return _import_errors


@pytest.mark.parametrize("operator", [PLAIN, MAPPED])
@pytest.mark.parametrize(
    ("device", "arguments", "phrases"),
    [
        ("'gpuu'", "", ["device='gpuu'", 'Did you mean "gpu"?']),
        ("'cpu:8'", "quota={'memory': '4GiB'}", ["memory='4GiB..'", "Use host_memory"]),
        ("'gpu:0'", "", ["device='gpu:0'", "the quantity '0'", '"gpu:2"']),
        ("'gpu'", "quota={'share': float('nan')}", ["share=nan", "above 0 and below 1"]),
        ("'gpu'", "runtime={'cuda': 'new'}", ["runtime['cuda']='new'", '">=12.4,!=12.6.*"']),
        ("'gpu'", "priority='asap'", ["priority='asap'", "urgent, high, medium, low"]),
        ("'x' * 100_000", "", ["100000 characters", '"gpu:2"']),
    ],
)
def test_it_names_the_field_the_value_and_the_nearest_valid_form(import_errors, operator, device, arguments, phrases):
    (error,) = import_errors(operator.format(device=device, rest=arguments))
    assert [word for word in phrases if word not in error] == []


DECORATED = 'task.device(device="gpu", {rest})(f).override(task_id="t")(x=1)'
DECORATED_MAPPED = 'task.device(device="gpu", {rest})(f).override(task_id="t").expand(x=[1])'
BY_ROWS = 'DeviceBashOperator.partial(task_id="t").expand_kwargs([dict(device="gpu", bash_command="a", {rest})])'


@pytest.mark.parametrize("operator", [PLAIN, DECORATED, DECORATED_MAPPED, BY_ROWS])
@pytest.mark.parametrize(
    ("arguments", "phrases"),
    [
        ("priorty='high'", ["Task t: priorty='high'", 'Did you mean "priority"?']),
        ("memory='80GiB'", ["Task t: memory='80GiB'", 'Did you mean quota={"memory": ...}?']),
        ("whatever=1", ["Task t: whatever=1", "The arguments for devices are device, quota, runtime"]),
        ("profile='yes'", ["Task t: profile='yes'", "found neither True nor False"]),
        ("checkpoint={'keep_lst': 3}", ["Task t: checkpoint['keep_lst']=3", '"keep_last"']),
        ("checkpoint={'url': 's4://a'}", ["Task t: checkpoint.url='s4://a'", "no store for the scheme 's4'"]),
        ("checkpoint={'url': 's3:/models/a'}", ["Task t:", "found no name of a bucket"]),
        ("checkpoint={'url': 's3://Bad_Bucket!/x'}", ["Task t:", "found no name of a bucket"]),
        ("checkpoint={'url': 'file://shared/a'}", ["Task t:", "found no folder of this host"]),
        ("labels={'zone': '{{ ti.x }}'}", ["Task t:", "'ti' has no value; dag_run, ds, logical_date, params, run_id"]),
    ],
)
def test_every_way_to_write_a_task_refuses_what_its_constructor_would(import_errors, operator, arguments, phrases):
    (error,) = import_errors(operator.format(device="'gpu'", rest=arguments))
    assert [word for word in phrases if word not in error] == []
    assert "DecoratedOperator" not in error.splitlines()[-1]


def test_a_dag_that_ends_from_a_trigger_is_no_import_error_for_having_us_installed(import_errors):
    """Trap 9: any listener of a plugin would make it one."""
    statement = 'DateTimeSensorAsync(task_id="t", target_time="2026-01-01", end_from_trigger=True)'
    assert import_errors(statement) == []
