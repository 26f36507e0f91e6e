"""The types of what users write: the arguments of device operators. Type checkers, IDEs and the schema read them.

Closed sets are literals. Devices, models and software are open texts: a probe may find any. An argument that is a Jinja
template is a text too; a type checker refuses it for ``priority``, where a type error is worth more.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypedDict

from hetero_airflow.model.request import Alternative, DeviceRequest, Priority

PriorityName = SkipJsonSchema[Priority] | Literal["urgent", "high", "medium", "low"]
"""How urgent a request is; ``medium`` by default."""

Duration = float | str | SkipJsonSchema[timedelta]
"""Seconds, a timedelta, or a text such as ``2h``."""

Size = int | str
"""Bytes, or a text such as ``40GiB``. A range is a text: ``24GiB..80GiB``, ``40GiB..``."""


class Quota(TypedDict, total=False):
    """How much of the devices, and of their host."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    count: Annotated[int, Field(description="Devices, or cores of a CPU.", examples=[2])]
    share: Annotated[float, Field(description="A part of one device, above 0 and below 1.", examples=[0.5])]
    memory: Annotated[Size, Field(description="Memory of each device, or a range.", examples=["24GiB..80GiB"])]
    cpus: Annotated[int, Field(description="CPU cores beside the devices.", examples=[8])]
    host_memory: Annotated[Size, Field(description="Memory of the host.", examples=["64GiB"])]


class DeviceOption(Quota, total=False):
    """A device with a quota and conditions of its own."""

    device: Annotated[str, Field(description="The device, and how many.", examples=["gpu:2", "nvidia/a100-80gb"])]
    vendor: str
    kind: str
    model: str
    partition: Annotated[str, Field(description="A MIG profile.", examples=["1g.10gb"])]
    runtime: Mapping[str, str]
    driver: str
    labels: Mapping[str, str]
    topology: str
    architecture: Annotated[str, Field(description="The worker's CPU architecture.", examples=["x86-64", "aarch64"])]
    spot: bool


class Checkpointing(TypedDict, total=False):
    """Where checkpoints go, which are kept, and the effect of a clear."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    url: Annotated[str, Field(description="The place, if not [hetero] checkpoint_url.", examples=["s3://models/a"])]
    keep_last: Annotated[int, Field(description="Keep this many; 3 by default.", examples=[5])]
    keep_best: Annotated[str, Field(description="Keep the best by a metric too.", examples=["min:loss"])]
    keep_every: Annotated[int, Field(description="Keep those at multiples of this many steps too.", examples=[1000])]
    on_clear: Annotated[Literal["fresh", "resume"], Field(description="Where a cleared task begins.")]


DeviceArgument = (
    str
    | DeviceOption
    | Sequence[str | DeviceOption | SkipJsonSchema[Alternative]]
    | SkipJsonSchema[AbstractSet[str]]
    | SkipJsonSchema[Alternative]
    | SkipJsonSchema[DeviceRequest]
)
"""A device; a list of alternatives, of which the first that fits is taken; or a set, from which the policy chooses."""


class RequestedDevice(TypedDict):
    """Which devices."""

    device: Annotated[
        DeviceArgument,
        Field(
            description="The device type and how many. A list: alternatives; the first that fits is taken. In Python, "
            "a set too: the policy chooses.",
            examples=["gpu", "nvidia/a100-80gb:2", "gpu:0.5", "cpu:8", ["h100:2", "a100:4", "cpu:32"]],
        ),
    ]


class PlacementConditions(TypedDict, total=False):
    """What the devices and their worker must be."""

    quota: Quota | SkipJsonSchema[None]
    runtime: Annotated[
        Mapping[str, str] | SkipJsonSchema[None],
        Field(description="Versions that the worker must have.", examples=[{"cuda": ">=12.4,!=12.6.*"}]),
    ]
    driver: Annotated[
        str | SkipJsonSchema[None], Field(description="Version of the device's driver.", examples=[">=550"])
    ]
    labels: Annotated[
        Mapping[str, str] | SkipJsonSchema[None],
        Field(description="Labels of the worker: 7, !7 any other or none, !7,8 neither.", examples=[{"zone": "a"}]),
    ]
    topology: Annotated[
        Annotated[str, Field(pattern=r"^(nvlink|numa|host|rack|site)(@.+)?$")] | SkipJsonSchema[None],
        Field(
            description="How close the devices, or a gang's members, are; @ is how long to wait for it.",
            examples=["nvlink", "rack@10m"],
        ),
    ]
    spot: Annotated[
        bool | SkipJsonSchema[None],
        Field(description="False: never on a worker with the label hetero/spot.", examples=[False]),
    ]
    priority: PriorityName | SkipJsonSchema[None]


class RequestConditions(PlacementConditions, total=False):
    """What `DeviceRequest.parse` reads beside the device."""

    wait_timeout: Annotated[
        Duration | SkipJsonSchema[None], Field(description="The task fails after this wait.", examples=["2h", 600])
    ]
    patience: Annotated[
        bool | SkipJsonSchema[None],
        Field(description="False: never wait for better devices while others are free.", examples=[False]),
    ]
    data: Annotated[
        str | Sequence[str] | SkipJsonSchema[None],
        Field(
            description="URLs of what it reads. Of equally good workers it gets one that has them cached.",
            examples=["s3://lake/train/", ["s3://lake/train/", "s3://lake/labels.csv"]],
        ),
    ]


class DeviceArguments(RequestedDevice, RequestConditions, total=False):
    """The arguments of a device task."""

    gang: Annotated[
        int | str | SkipJsonSchema[None],
        Field(description="For a mapped task: so many are placed together.", examples=[4, "2:4@10m"]),
    ]
    checkpoint: Checkpointing | SkipJsonSchema[None]
    profile: Annotated[
        bool | SkipJsonSchema[None],
        Field(description="True: keep a trace of the steps 11 to 20 of each run beside its checkpoints."),
    ]


def arguments_schema() -> dict[str, Any]:
    """The JSON schema of the arguments of a device task, with examples."""
    schema = TypeAdapter(DeviceArguments).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
