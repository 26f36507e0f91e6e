"""A model is compiled where that pays, and what earlier runs have measured decides it."""

import logging
import re

import pytest
import torch
from torch import nn

from hetero_airflow.errors import RequestError
from hetero_airflow.model.devices.features import CPP, NONE, TRITON, UNKNOWN
from hetero_airflow.runtime.compute import compiled_code, compiled_model
from hetero_airflow.runtime.compute.compiled_model import FIRST_STEPS, MEASURED_STEPS, Known, decide
from hetero_airflow.runtime.device_features import leased_features
from hetero_airflow.settings import CHECKPOINT_VARIABLE, LEASE_VARIABLE, TASK_SECRET_VARIABLE
from hetero_airflow.testing.builders import a_task_lease

MEASURED = Known(work_s=900, eager_s=0.2, compiled_s=0.1, cold_s=30, warm_s=3)


@pytest.mark.parametrize(
    ("known", "steps", "is_warm", "wanted"),
    [
        (Known(), 10**9, False, (False, "measured without that first")),
        (Known(work_s=500, eager_s=1), 99, False, (False, "less than 600 s of work so far")),
        (Known(work_s=500, eager_s=1), 100, False, (True, "to measure it")),
        (Known(work_s=500, eager_s=1, trials=2), 10**9, False, (False, "2 earlier runs ended in their first")),
        (MEASURED.model_copy(update={"trials": 2}), 10**9, True, (False, "ended in their first compiled steps")),
        (MEASURED, 360, False, (False, "360 steps take 36 s less, and it costs 30 s")),
        (MEASURED, 370, False, (True, "370 steps take 37 s less, and it costs 30 s")),
        (MEASURED, 35, True, (False, "it costs 3 s")),
        (MEASURED, 37, True, (True, "it costs 3 s")),
        (MEASURED, 0, True, (False, "no less time")),
        (MEASURED.model_copy(update={"warm_s": None}), 370, True, (True, "it costs 30 s")),
        (MEASURED.model_copy(update={"compiled_s": 0.2}), 10**9, True, (False, "its steps take no less time then")),
    ],
)
def test_it_compiles_where_that_pays(known, steps, is_warm, wanted):
    chosen, why = decide(known, steps, is_warm=is_warm)
    assert chosen is wanted[0]
    assert wanted[1] in why


class Seconds:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def seconds(monkeypatch):
    clock = Seconds()
    monkeypatch.setattr(compiled_model, "time", clock)
    return clock


@pytest.fixture
def run(begin, monkeypatch, caplog, seconds, forget_compiled):
    """Trains in a new run; what the log says."""
    monkeypatch.setenv(LEASE_VARIABLE, a_task_lease(simulated=True).model_dump_json())
    monkeypatch.setenv(TASK_SECRET_VARIABLE, "of this task")
    monkeypatch.setattr("hetero_airflow.runtime.checkpoint.session", lambda: begin(next(tokens)))
    tokens = iter((1, 2, 3, 5, 6, 7, 8))
    caplog.set_level(logging.INFO)

    def ran(
        model=None,
        expected=6000,
        eager_s=1.0,
        compiled_s=0.5,
        compile_s=30.0,
        calls=FIRST_STEPS + MEASURED_STEPS + 1,
        **options,
    ):
        forget_compiled()
        compiled_code._own_folder()  # before torch._dynamo makes its own
        torch._dynamo.reset()
        caplog.clear()
        model = model or nn.Linear(4, 4)
        called = compiled_model.compile(model, expected_steps=expected, on_cpu=True, **{"backend": counting, **options})
        for _ in range(calls):
            before = len(compiled)
            called(torch.ones(2, 4))
            seconds.now += compile_s * (len(compiled) > before) + (compiled_s if is_compiled(called) else eager_s)
        if called._compiling.writer:
            called._compiling.writer.join()
        return "\n".join(caplog.messages)

    compiled = []

    def counting(graph, inputs):
        compiled.append(graph)
        folder = compiled_code._own_folder()
        if folder:
            (folder.root / "inductor/graph").write_text("code")
        return graph.forward

    def is_compiled(called):
        return called._call is not called._model

    yield ran
    torch._dynamo.reset()


def test_the_first_run_measures_the_next_compiles_and_later_ones_start_compiled(run):
    assert "not compiled: it is measured without that first" in run()
    second = run()
    assert "The model is compiled: to measure it." in second
    assert "A compiled step takes 0.5 s; the first ones took 30 s longer." in second
    assert "The model is compiled by an earlier run: 6000 steps take 3e+03 s less" in run(compile_s=2)
    assert "and it costs 2 s" in run()


def test_a_short_run_that_it_would_make_slower_is_not_compiled(run):
    run(), run(), run(compile_s=20)
    assert "not compiled: 47 steps take 23.5 s less, and it costs 20 s" in run(expected=47)
    assert "compiled by an earlier run: 49 steps take 24.5 s less, and it costs 20 s" in run(expected=49, compile_s=20)


def test_a_task_with_little_work_is_left_until_its_runs_have_more(run):
    said = [re.search("not compiled|to measure it", run(expected=100))[0] for _ in range(6)]
    assert said == ["not compiled"] * 5 + ["to measure it"]


def test_a_model_that_becomes_slower_goes_on_as_it_is(run):
    run()
    assert "goes on without being compiled: a step takes no longer then" in run(compiled_s=1.1)
    assert "not compiled: its steps take no less time then" in run()


def test_a_compiler_that_fails_costs_nothing(run):
    def broken(graph, inputs):
        raise ValueError("no such operator")

    run(backend=broken)
    assert "goes on without being compiled, since that failed: " in run(backend=broken)
    assert "not compiled: 2 earlier runs ended in their first compiled steps" in run(backend=broken)


def test_a_run_that_ends_while_it_compiles_is_tried_once_more(run):
    run()
    for _ in range(2):
        assert "to measure it" in run(calls=FIRST_STEPS)
    assert "2 earlier runs ended in their first compiled steps" in run()


def test_a_run_that_is_short_or_preempted_is_no_failure(run):
    run(), run()
    for _ in range(3):
        assert "compiled by an earlier run" in run(calls=FIRST_STEPS + 1)


def test_each_model_and_device_is_measured_for_itself(run, monkeypatch):
    run()
    assert "without that first" in run(model=nn.Linear(4, 4, bias=False))
    assert "without that first" in run(dynamic=True)
    monkeypatch.setattr(compiled_model, "_cpu", lambda: ["flags: other"])
    assert "without that first" in run()


def test_an_evaluation_between_is_not_measured(run):
    model = nn.Linear(4, 4).eval()
    run(model=model)
    assert "without that first" in run(model=model)


def test_what_a_checkpoint_has_behind_is_left_out(run, begin):
    run(), run(), run(compile_s=20)
    begin(4).save(5959, {}, metrics=None, files=None, wait=True, final=False)
    assert "not compiled: 40 steps take" in run()


def test_measures_that_can_not_be_read_are_made_anew(run, folder_of_place, caplog):
    run()
    kept = folder_of_place.parent.parent / "compiled.json"
    kept.write_text(kept.read_text().replace('"eager_s":', '"eager_days":'))
    said = run()
    assert "What earlier runs have measured of the compiled model can't be read." in said
    assert "without that first" in said
    assert "to measure it" in run()


@pytest.mark.parametrize(
    ("compiler", "on_cpu", "wanted"),
    [
        (UNKNOWN, True, "no compiler is known for"),
        (NONE, True, "torch.compile does not compile for"),
        (CPP, False, "on a CPU that takes on_cpu=True"),
        (CPP, True, r"it needs g\+\+ on this host"),
        (TRITON, False, "it needs gcc or clang on this host"),
    ],
)
def test_where_it_can_not_compile_the_model_is_called_itself(monkeypatch, caplog, compiler, on_cpu, wanted):
    features = leased_features()._replace(compiler=compiler)
    monkeypatch.setattr(compiled_model, "leased_features", lambda: features)
    monkeypatch.setenv("PATH", "")
    caplog.set_level(logging.INFO)
    model = nn.Linear(1, 1)
    assert compiled_model.compile(model, expected_steps=10, on_cpu=on_cpu) is model
    assert re.fullmatch(f"The model is not compiled: {wanted}.*", caplog.messages[-1])


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "100"])
def test_a_wrong_number_of_steps_is_refused(steps):
    with pytest.raises(RequestError, match="expected_steps"):
        compiled_model.compile(nn.Linear(1, 1), expected_steps=steps)


TRAIN = """
from torch import nn
from hetero_airflow.runtime import compile
from hetero_airflow.runtime.compute import compiled_model

compiled_model.decide = lambda known, steps, *, is_warm: (True, "a test")
model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))])
torch.manual_seed(1)
called = compile(model, expected_steps=100, on_cpu=True)
for _ in range(26):
    called(torch.ones(8, 32)).square().mean().backward()
called._compiling.writer.join()
counters = torch._dynamo.utils.counters["inductor"]
say([counters["fxgraph_cache_hit"] > 0, counters["fxgraph_cache_miss"] > 0])
"""


@pytest.mark.long
def test_what_gcc_has_compiled_is_not_compiled_again(run_ranks, place):
    said = [
        run_ranks(
            TRAIN,
            {
                CHECKPOINT_VARIABLE: place.model_copy(update={"token": token}).model_dump_json(),
                LEASE_VARIABLE: a_task_lease(id="compiled", simulated=True).model_dump_json(),
                TASK_SECRET_VARIABLE: secret,
                compiled_code.CACHE_VARIABLE: "",
            },
            count=1,
        )[0]
        for token, secret in enumerate(("of this task", "of this task", "of another task"), 1)
    ]
    assert said == [[False, True], [True, False], [False, True]]
