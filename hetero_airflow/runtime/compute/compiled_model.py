"""A model that is compiled where that pays over the run.

Compiling takes seconds to minutes, and it pays by what it saves in each step. Both are known only by measuring. So the
first run of a task is eager and measured. When its runs together have worked for long enough, one compiles and is
measured too. From then on, each run computes what is faster for the steps that it has.

Rejected: a guess from the size of the model, which knows neither the compiler nor the device; and to compile while
eager steps run, which takes the cores of the loader.
"""

import atexit
import hashlib
import json
import logging
import math
import os
import platform
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from hetero_airflow.contract.task_lease import torch_device
from hetero_airflow.errors import RequestError, shorten
from hetero_airflow.model.devices.features import CPP, TRITON, UNKNOWN
from hetero_airflow.runtime.checkpoint_session import CheckpointSession
from hetero_airflow.runtime.compute.compiled_code import Bundle, CompiledCode
from hetero_airflow.runtime.compute.kept import KeptResults
from hetero_airflow.runtime.device_features import leased_features
from hetero_airflow.runtime.gang.ranks import rank

logger = logging.getLogger(__name__)

FIRST_STEPS, MEASURED_STEPS = 5, 20
"""Steps in which what is new is compiled, and the further ones whose median is measured."""

TRIAL_WORK_S = 600.0
"""When the runs of a task have this much work behind and before them, one tries to compile. A model takes a minute or
less, mostly, so this costs a tenth of their time at most, once."""

MAX_TRIALS = 2
"""So many runs may end in their first compiled steps, before compiling is left."""

_MARGIN = 1.2
"""What compiling must save, as a part of what it costs: each is measured in another run, with other noise."""


class Known(BaseModel):
    """What earlier runs have measured of a model on a kind of device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    work_s: float = Field(default=0, ge=0)
    """The time of all steps that the runs had before them, without compiling."""
    eager_s: float | None = Field(default=None, gt=0)
    """The median time of a step without compiling."""
    compiled_s: float | None = Field(default=None, gt=0)
    cold_s: float | None = Field(default=None, ge=0)
    """What the first steps took in addition when all was compiled."""
    warm_s: float | None = Field(default=None, ge=0)
    """What they took in addition with the compiled code of an earlier run."""
    trials: int = Field(default=0, ge=0)
    """Runs that have ended in their first compiled steps, one after the other; `MAX_TRIALS` if compiling failed."""
    bundle: Bundle | None = None


def compile(  # noqa: A001
    model: torch.nn.Module, *, expected_steps: int, on_cpu: bool = False, **options: Any
) -> Callable[..., Any]:
    """What to call in place of the model: compiled where that pays over the run, else the model itself.

    The model itself is not changed: keep it in the state of the checkpoint. All ranks call this function.

    :param expected_steps: how often the whole training calls the model; what a checkpoint has behind is left out
    :param on_cpu: compile on a CPU too; there it takes g++ longer, and saves less
    :param options: of `torch.compile`
    :raises RequestError: no such number of steps
    """
    from hetero_airflow.runtime.checkpoint import session

    if isinstance(expected_steps, bool) or not isinstance(expected_steps, int) or expected_steps < 1:
        remedy = "Give a whole number, 1 or more"
        raise RequestError("expected_steps", expected_steps, found="no number of steps", remedy=remedy)
    missing = _missing(on_cpu=on_cpu)
    if missing:
        logger.info("The model is not compiled: %s.", missing)
        return model
    return _Compiling(session(), model, expected_steps, options).made()


def decide(known: Known, steps: int, *, is_warm: bool) -> tuple[bool, str]:
    """Whether a run of so many steps compiles, and why.

    :param is_warm: whether it has the compiled code of an earlier run

    >>> decide(Known(work_s=900, eager_s=0.2, compiled_s=0.1, cold_s=30, warm_s=3), 100, is_warm=True)
    (True, '100 steps take 10 s less, and it costs 3 s')
    """
    if known.eager_s is None:
        return False, "it is measured without that first"
    if known.trials >= MAX_TRIALS:
        return False, f"{known.trials} earlier runs ended in their first compiled steps, or compiling failed"
    if known.compiled_s is None:
        is_worth = known.work_s + steps * known.eager_s >= TRIAL_WORK_S
        return is_worth, "to measure it" if is_worth else f"its runs have less than {TRIAL_WORK_S:.0f} s of work so far"
    cost_s = known.warm_s if is_warm and known.warm_s is not None else known.cold_s or 0.0
    saved_s = steps * (known.eager_s - known.compiled_s)
    if saved_s <= 0:
        return False, "its steps take no less time then"
    return saved_s > cost_s * _MARGIN, f"{steps} steps take {saved_s:.3g} s less, and it costs {cost_s:.3g} s"


class _Compiling:
    """One model in one run."""

    def __init__(
        self, session: CheckpointSession, model: torch.nn.Module, expected_steps: int, options: dict[str, Any]
    ) -> None:
        self._session = session
        self._model = model
        self._options = options
        latest = session.latest() if rank() == 0 else None
        done = session.collectives.broadcast(latest.step + 1 if latest else 0)
        self._steps = max(0, expected_steps - done)
        self._digest = _digest(model, options)
        self._code = CompiledCode(session)
        self._kept = KeptResults(session, "compiled")
        self._known = Known()
        self._is_warm = False
        self.writer: threading.Thread | None = None
        """Keeps what this run has compiled."""
        self._begun_at = time.perf_counter()
        self._files = 0
        """How many there are before this run compiles."""

    def made(self) -> Callable[..., Any]:
        """What to call in place of the model."""
        self._known = _known(self._kept.read(self._digest))
        bundle = self._known.bundle
        is_chosen, why = decide(self._known, self._steps, is_warm=bundle is not None)
        if self._session.collectives.broadcast(int(is_chosen)) and bundle is not None:
            self._is_warm = self._code.fill(self._digest, bundle)
            if not self._is_warm:
                is_chosen, why = decide(self._known, self._steps, is_warm=False)
        if not self._session.collectives.all(is_chosen):
            logger.info("The model is not compiled: %s.", why)
            return _Measured(self._model, self._model, self)
        if self._is_warm:
            logger.info("The model is compiled by an earlier run: %s.", why)
        else:
            logger.info("The model is compiled: %s.", why)
        self._keep(trials=self._known.trials + 1)
        self._files = self._code.count()
        from torch._inductor import config as inductor_config

        inductor_config.cpp_cache_precompile_headers = False  # torch keeps them where other users could write
        return _Measured(torch.compile(self._model, **self._options), self._model, self)

    def record_eager(self, step_s: float) -> None:
        """Keep what a step takes without compiling."""
        self._keep(eager_s=step_s, work_s=self._known.work_s + self._steps * step_s)

    def record_begun(self) -> None:
        """The first steps went well."""
        self._keep(trials=0)

    def record_compiled(self, first_s: float, step_s: float, begun_at: float) -> bool:
        """Keep what compiling took, and what a step takes then; whether the run goes on with it."""
        first_s += begun_at - self._begun_at
        logger.info("A compiled step takes %.3g s; the first ones took %.3g s longer.", step_s, first_s)
        self.writer = threading.Thread(target=self._keep_compiled, args=(first_s, step_s))
        self.writer.start()
        atexit.register(self.writer.join)
        return step_s < (self._known.eager_s or math.inf)

    def record_failure(self, error: Exception) -> None:
        """Let no later run try."""
        logger.warning("The model goes on without being compiled, since that failed: %s", shorten(str(error), 400))
        self._keep(trials=MAX_TRIALS)

    def _keep_compiled(self, first_s: float, step_s: float) -> None:
        if rank():
            return
        bundle = self._code.keep(self._digest) if self._code.count() != self._files else self._known.bundle
        start = {"warm_s": first_s} if self._is_warm else {"cold_s": first_s}
        kept = self._keep(compiled_s=step_s, bundle=bundle, **start)
        self._code.sweep({known.bundle.digest for known in map(_known, kept) if known.bundle})

    def _keep(self, **changes: Any) -> list[JsonValue]:
        if rank():
            return []
        self._known = self._known.model_copy(update=changes)
        return self._kept.keep(self._digest, self._known.model_dump(mode="json"))


class _Measured:
    """Calls a model, and measures the first steps of a training."""

    def __init__(self, call: Callable[..., Any], model: torch.nn.Module, compiling: _Compiling) -> None:
        self._call = call
        self._model = model
        self._compiling = compiling
        self._times: list[float] | None = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The model's own result."""
        if self._times is not None and self._model.training and torch.is_grad_enabled():
            self._times.append(time.perf_counter())
            if len(self._times) == FIRST_STEPS + 1 and self._call is not self._model:
                self._compiling.record_begun()
            if len(self._times) > FIRST_STEPS + MEASURED_STEPS:
                self._record(self._times)
        try:
            return self._call(*arguments, **keywords)
        except RuntimeError as error:
            from torch._dynamo.exc import TorchDynamoException  # makes torch's folder: see `compiled_code`

            if self._call is self._model or not isinstance(error, TorchDynamoException):
                raise
            self._call, self._times = self._model, None
            self._compiling.record_failure(error)
        return self._model(*arguments, **keywords)

    def _record(self, times: list[float]) -> None:
        self._times = None
        intervals = [later - earlier for earlier, later in pairwise(times)]
        step_s = statistics.median(intervals[FIRST_STEPS:])
        if self._call is self._model:
            self._compiling.record_eager(step_s)
            return
        first_s = max(0.0, sum(intervals[:FIRST_STEPS]) - FIRST_STEPS * step_s)
        if not self._compiling.record_compiled(first_s, step_s, times[0]):
            logger.info("The model goes on without being compiled: a step takes no longer then.")
            self._call = self._model


def _known(kept: JsonValue) -> Known:
    try:
        return Known.model_validate(kept or {})
    except ValidationError:
        logger.warning("What earlier runs have measured of the compiled model can't be read.")
        return Known()


def _missing(*, on_cpu: bool) -> str:
    """Why this process can't compile for its device; empty if it can."""
    features = leased_features()
    if features.compiler == UNKNOWN:
        return f"no compiler is known for {features.architecture}"
    if features.compiler not in (TRITON, CPP):
        return f"torch.compile does not compile for {features.architecture}"
    if features.compiler == CPP and not on_cpu:
        return "on a CPU that takes on_cpu=True"
    variable, *names = ("CXX", "g++") if features.compiler == CPP else ("CC", "gcc", "clang")
    if not any(map(shutil.which, [os.environ.get(variable, ""), *names])):
        return f"it needs {' or '.join(names)} on this host"
    return ""


def _digest(model: torch.nn.Module, options: dict[str, Any]) -> str:
    """What measured times and compiled code depend on, as far as it is known. torch's own caches know the graph."""
    device = torch_device()
    facts = [
        [(name, type(part).__qualname__, part.extra_repr()) for name, part in model.named_modules()],
        [(name, list(tensor.shape), str(tensor.dtype)) for name, tensor in model.state_dict().items()
         if isinstance(tensor, torch.Tensor)],
        sorted((name, str(value)) for name, value in options.items()),
        leased_features().training_dtype,
        [torch.__version__, torch.version.cuda, torch.version.hip, platform.python_version()],
        [platform.machine(), platform.libc_ver(), _cpu()],
        [torch.cuda.get_device_name(device), _driver()] if device.type == "cuda" else str(device),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _cpu() -> list[str]:
    """What code for this CPU may use: it is compiled for just this one."""
    lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    return [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part", "isa"))]


def _driver() -> str:
    for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        if Path(path).exists():
            return Path(path).read_text().partition("\n")[0]
    return "unknown"
