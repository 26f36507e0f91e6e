import math
import random
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.model.devices.speeds import data_sheet_speed
from hetero_airflow.model.estimates import MAX_DURATION_S, MAX_SPEED, NO_ESTIMATES, Estimates, Interval
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import MeasuredSpeed, RunEnd, TimeShares
from hetero_airflow.scheduling.learning.learner import RUNS_PER_TASK, Learner, PastRequests
from hetero_airflow.scheduling.learning.speed_fit import MIN_RUN_S, USUAL_SPREAD
from hetero_airflow.store.store import LeaseMove, RequestSubmitted, WorkerSeen
from hetero_airflow.testing import EPOCH, a_pending, a_place, a_run, a_worker
from tests.sqlite_store import SqliteStore

V100, T4, A100, X1, CPU = "nvidia/v100", "nvidia/t4", "nvidia/a100", "acme/x1", "generic/x86-64"
TRAIN = ("dag", "train")


def learned(*runs, classes=()) -> Estimates:
    learner = Learner()
    assert learner.learn(runs) == []
    return learner.estimates(frozenset(classes))


def took(*seconds: float, task=TRAIN, on=V100, **fields):
    return [a_run(task=task, device_class=on, held_s=s, **fields) for s in seconds]


def middle(estimates: Estimates, on=V100, task=TRAIN) -> float:
    duration = estimates.duration_s(task, on)
    assert duration is not None
    return duration.middle


def factor(first: float, second: float) -> float:
    return max(first / second, second / first)


# -- what is learned ---------------------------------------------------------------------------------------------------


def test_without_runs_there_are_no_estimates():
    assert learned() is not NO_ESTIMATES
    assert learned().duration_s(TRAIN, V100) is None
    assert (learned().finished_s, learned().mix) == ((), ())


def test_steady_runs_are_expected_again():
    estimates = learned(*took(*[100.0] * 10))
    low, _, high = estimates.duration_s(TRAIN, V100)
    assert middle(estimates) == pytest.approx(100)
    assert 50 < low < 100 < high < 200


def test_only_finished_runs_teach_durations():
    unfinished = [a_run(task=TRAIN, device_class=V100, held_s=1.0, end=end) for end in RunEnd if end != RunEnd.FINISHED]
    assert learned(*unfinished).duration_s(TRAIN, V100) is None
    assert middle(learned(*unfinished, *took(100.0))) == pytest.approx(100)


def test_newer_runs_count_more():
    assert middle(learned(*took(*[100.0] * 12, *[300.0] * 10))) == pytest.approx(300)
    assert middle(learned(*took(*[100.0] * 12, *[300.0] * 3))) == pytest.approx(100)


def test_a_task_on_a_new_class_follows_the_data_sheets():
    estimates = learned(*took(*[100.0] * 10), classes=[T4, X1])
    assert middle(estimates, T4) == pytest.approx(100 / data_sheet_speed(T4), rel=1e-3)
    assert estimates.duration_s(TRAIN, X1) is None
    assert estimates.default_speeds == {T4: pytest.approx(data_sheet_speed(T4)), V100: 1.0}


def test_speeds_on_several_classes_correct_the_data_sheets_of_others():
    """In this test, a T4 is half as fast as its data sheet says."""
    shown = [
        run
        for n in range(10)
        for run in (
            *took(*[100.0] * 9, task=("dag", f"t{n}")),
            *took(200 / data_sheet_speed(T4), task=("dag", f"t{n}"), on=T4),
        )
    ]
    estimates = learned(*shown, *took(*[100.0] * 10), classes=[T4])
    assert factor(middle(estimates, T4), 200 / data_sheet_speed(T4)) < 1.2
    assert factor(middle(learned(*took(*[100.0] * 10), classes=[T4]), T4), 200 / data_sheet_speed(T4)) > 1.9


def test_one_run_is_shrunk_towards_its_dag_and_many_are_not():
    other_tasks = [run for n in range(20) for run in took(*[10.0] * 5, task=("dag", f"t{n}"))]
    far = [run for n in range(20) for run in took(*[10.0] * 5, task=("other", f"t{n}"))]
    alone, few, many = (
        middle(learned(*runs)) for runs in (took(100.0), other_tasks + took(100.0), other_tasks + took(*[100.0] * 30))
    )
    assert alone == pytest.approx(100)
    assert 50 < few < 95
    assert 99 < many < 100
    assert few <= middle(learned(*far, *took(100.0))) < 100


def test_devices_without_data_sheets_are_learned_separately():
    estimates = learned(*took(*[100.0] * 5, on=X1), *took(*[400.0] * 5, on=CPU), classes=[V100])
    assert (middle(estimates, X1), middle(estimates, CPU)) == (pytest.approx(100), pytest.approx(400))
    assert estimates.duration_s(TRAIN, V100) is None


def test_a_task_that_also_ran_where_no_data_sheet_is_known_learns_beside_one_that_reports_steps():
    learner = Learner()
    learner.learn([*took(100.0, 100.0, on=V100), *took(400.0, 400.0, on=X1)])
    learner.learn_speeds([MeasuredSpeed(("dag", "steps"), V100, 1.0, 0.05, 720, 60.0)])
    estimates = learner.estimates(frozenset({V100}))
    assert estimates.relative_speeds(TRAIN, frozenset({V100, X1})) == {V100: 1.0, X1: pytest.approx(0.25, rel=0.1)}


def test_the_interval_covers_the_spread_of_the_runs():
    generator = random.Random(5)
    scattered = [100 * math.exp(generator.gauss(0, 0.8)) for _ in range(RUNS_PER_TASK)]
    narrow, wide = (learned(*took(*s)).duration_s(TRAIN, V100) for s in ([100.0] * RUNS_PER_TASK, scattered))
    assert narrow.high / narrow.low < 1.5
    assert 4 < wide.high / wide.low < 16


def test_few_runs_leave_a_wide_interval():
    from_one, ten = (learned(*took(*[100.0] * n)).duration_s(TRAIN, V100) for n in (1, 10))
    assert from_one.high / from_one.middle > math.exp(USUAL_SPREAD) > ten.high / ten.middle


# -- parts -------------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_preempted_run_are_one_run():
    part = a_run(task=TRAIN, device_class=V100, held_s=60.0, end=RunEnd.PAUSED)
    last_part = a_run(task=TRAIN, device_class=V100, held_s=40.0, attained_service_s={V100: 60.0})
    assert middle(learned(part, last_part)) == pytest.approx(100)


def test_parts_without_attained_service_are_joined_by_the_request_id():
    parts = [a_run(task=TRAIN, device_class=V100, held_s=30.0, end=RunEnd.PAUSED)] * 2
    last = a_run(task=TRAIN, device_class=V100, held_s=40.0)
    assert middle(learned(*parts, last)) == pytest.approx(100)
    assert middle(learned(*parts, last, a_run(task=TRAIN, device_class=V100, held_s=100.0))) == pytest.approx(100)


def test_parts_on_several_classes_are_added_by_their_speeds():
    steady = took(*[100.0] * 20) + took(*[400.0] * 20, on=T4)
    moved = a_run(task=("dag", "moved"), device_class=T4, held_s=200.0, attained_service_s={V100: 50.0})
    estimates = learned(*steady, *[moved] * 20)
    assert factor(middle(estimates, V100, ("dag", "moved")), 100) < 1.2
    assert estimates.finished_s[-1] == pytest.approx(100, rel=0.2)


# -- the mix and the finished ------------------------------------------------------------------------------------------


def test_the_mix_counts_requests_not_leases():
    gpu, share = (DeviceRequest.parse(text).alternatives[0] for text in ("gpu", "gpu:0.5"))
    parts = [a_run(request_id="a", asked=gpu, end=RunEnd.PAUSED), a_run(request_id="a", asked=gpu)]
    other_runs = [a_run(request_id=name, asked=share, end=RunEnd.LOST) for name in "bcd"]
    assert learned(*parts, *other_runs).mix == ((share, 0.75), (gpu, 0.25))


def test_the_mix_changes_after_each_sixteenth_of_the_requests():
    """Policies make tables of it."""
    past, mixes = PastRequests(), []
    for n in range(1000):
        past.add(f"r{n}", a_pending(device=f"gpu:{1 + n % 2}").request.alternatives[0])
        if not mixes or past.mix != mixes[-1]:
            mixes.append(past.mix)
    assert len(mixes) < 90
    assert [part for _, part in mixes[-1]] == pytest.approx([0.5, 0.5], abs=0.001)


def test_finished_runs_count_as_on_their_fastest_class():
    runs = took(*[400.0] * 20, on=T4) + took(*[100.0] * 20) + took(5.0, task=("dag", "short"), on=X1)
    finished = learned(*runs).finished_s
    assert len(finished) == 41
    assert list(finished) == sorted(finished)
    assert finished[0] == pytest.approx(5, rel=0.1)
    assert finished[-1] == pytest.approx(100, rel=0.1)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_run_with_an_impossible_duration_is_skipped_with_a_text(seconds):
    learner = Learner()
    (word,) = learner.learn([a_run(task=TRAIN, held_s=seconds)])
    assert word.startswith("The run r1 of dag.train on nvidia/a100-sxm4-40gb teaches nothing")
    assert f"{seconds:g} s. Set the clocks" in word
    (word,) = learner.learn([a_run(task=TRAIN, attained_service_s={V100: seconds})])
    assert "teaches nothing" in word
    assert learner.estimates(frozenset()).speeds == {}


def test_durations_are_bounded():
    estimates = learned(*took(0.0, task=("dag", "a")), *took(1e300, task=("dag", "b")), classes=["nvidia/k80"])
    assert middle(estimates, task=("dag", "a")) >= MIN_RUN_S
    assert middle(estimates, "nvidia/k80", ("dag", "b")) <= MAX_DURATION_S


@settings(deadline=None)
@given(st.lists(st.floats(60, 90), min_size=5, max_size=40), st.data())
def test_an_outlier_moves_the_estimate_by_less_than_the_spread(seconds, data):
    """The expected duration stays within the range of the other runs, and so do the other figures."""
    wild = data.draw(st.sampled_from([0.0, 1e-6, 1e6, 1e12]))
    position = data.draw(st.integers(0, len(seconds)))
    estimates = learned(*took(*seconds[:position], wild, *seconds[position:]))
    assert min(seconds) * 0.999 <= middle(estimates) <= max(seconds) * 1.001
    low, _, high = estimates.duration_s(TRAIN, V100)
    assert factor(high, low) < 21 * 1.5


CLASSES = st.sampled_from([V100, T4, A100, X1, CPU])
RUNS = st.lists(
    st.builds(
        lambda held_s, task, on, end, attained_s: a_run(
            held_s=held_s,
            task=("dag", task),
            device_class=on,
            end=end,
            attained_service_s=attained_s,
            request_id=f"{task}{held_s:g}",
        ),
        st.floats(),
        st.sampled_from("abc"),
        CLASSES,
        st.sampled_from([RunEnd.FINISHED] * 4 + list(RunEnd)),
        st.dictionaries(CLASSES, st.floats(), max_size=2),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(RUNS)
def test_estimates_are_always_within_bounds(runs):
    learner = Learner()
    learner.learn(runs)
    estimates = learner.estimates(frozenset({A100}))
    for task, speeds in estimates.speeds.items():
        assert estimates.works[task].low <= 1 <= estimates.works[task].high
        assert estimates.works[task].low > 0
        for name, speed in speeds.items():
            assert 0 < speed < MAX_SPEED
            low, mid, high = estimates.duration_s(task, name)
            assert 0 < low <= mid <= high <= MAX_DURATION_S
    assert all(MIN_RUN_S <= seconds <= MAX_DURATION_S for seconds in estimates.finished_s)
    assert sum(part for _, part in estimates.mix) == pytest.approx(1 if runs else 0)


@settings(deadline=None)
@given(RUNS, st.integers(0, 30))
def test_the_same_runs_in_any_number_of_calls_give_the_same_estimates(runs, first):
    whole, portions = Learner(), Learner()
    whole.learn(runs)
    portions.learn(runs[:first])
    portions.estimates(frozenset())
    portions.learn(runs[first:])
    at_once, in_portions = whole.estimates(frozenset({T4})), portions.estimates(frozenset({T4}))
    assert (at_once.speeds, at_once.works, at_once.finished_s) == (
        in_portions.speeds,
        in_portions.works,
        in_portions.finished_s,
    )
    assert (at_once.mix, at_once.default_speeds) == (in_portions.mix, in_portions.default_speeds)


# -- the truth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("runs", "wild", "within"), [(4, 0.0, 1.35), (16, 0.0, 1.2), (16, 0.1, 1.25)])
def test_learning_comes_near_the_truth(runs, wild, within):
    """100 tasks whose speeds differ from the sheets by a factor of 1.5 and whose runs scatter by one of 1.35 (one
    standard deviation each); of `wild` of the runs, the length is off by a factor of 1000."""
    generator = random.Random(11)
    classes = (V100, T4, A100)
    truth = {}
    for n in range(100):
        level = 600 * math.exp(generator.gauss(0, 1.4))
        truth["dag", f"t{n}"] = {
            name: level / data_sheet_speed(name) * math.exp(generator.gauss(0, math.log(1.5))) for name in classes
        }
    all_runs = []
    for task, speeds in truth.items():
        for _ in range(runs):
            name = generator.choice(classes)
            off = generator.choice([1e-3, 1e3]) if generator.random() < wild else 1.0
            all_runs += took(speeds[name] * math.exp(generator.gauss(0, 0.3)) * off, task=task, on=name)
    estimates = learned(*all_runs)
    wrong = sorted(factor(middle(estimates, n, task), truth[task][n]) for task in truth for n in classes)
    assert wrong[len(wrong) // 2] < within
    held = [
        low <= truth[task][name] * math.exp(generator.gauss(0, 0.3)) <= high
        for task in truth
        for name in classes
        for low, _, high in (estimates.duration_s(task, name) or Interval(0, 0, 0),)
    ]
    assert 0.6 < sum(held) / len(held) < 0.95, "about eight of ten future runs lie within the interval"


# -- the history -------------------------------------------------------------------------------------------------------


def test_a_refresh_reads_new_runs_and_returns_the_same_object_without_any():
    store, learner = SqliteStore(), Learner()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("a")), RequestSubmitted(a_pending("b"))], EPOCH)
    leases = store.commit(Plan((a_place("a", cpu=1000), a_place("b", cpu=1000))), EPOCH, EPOCH).leases
    classes = frozenset({V100})
    first = learner.refresh(store, classes)
    assert first.speeds == {}
    sequences = []
    tell, store.runs = store.runs, lambda since: sequences.append(since) or tell(since)
    assert learner.refresh(store, classes) is first
    for number, lease in enumerate(leases, start=1):
        end = EPOCH + timedelta(minutes=number)
        store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED, "", RunEnd.FINISHED)], end)
        known = learner.refresh(store, classes)
        assert middle(known, CPU, ("dag", lease.request_id)) == pytest.approx(60 * number)
    assert learner.refresh(store, classes) is known
    assert learner.refresh(store, classes | {T4}) is not known
    last = store.snapshot().sequence
    assert sequences == [0, 0, last - 1, last, last]


def test_a_refresh_logs_impossible_runs(caplog):
    store = SqliteStore()
    store.record([WorkerSeen(a_worker()), RequestSubmitted(a_pending("a"))], EPOCH)
    (lease,) = store.commit(Plan((a_place("a", cpu=1000),)), EPOCH, EPOCH).leases
    before = EPOCH - timedelta(minutes=1)
    store.move([LeaseMove(lease.id, lease.token, LeaseState.RELEASED, "", RunEnd.FINISHED)], before)
    Learner().refresh(store, frozenset())
    assert "said to have held its devices for -60 s" in caplog.text


@pytest.mark.parametrize("data", [None, 0.0, 0.5, 1.0])
def test_a_task_that_waits_for_data_gains_little_from_a_faster_class(data):
    """The half of a step on a T4 computes: on a V100 only this half is shorter."""
    learner = Learner()
    shares = None if data is None else TimeShares(data=data, compute=1 - data, save=0.0)
    learner.learn_speeds([MeasuredSpeed(TRAIN, T4, math.log(2.0), 0.05, 720, 60.0, shares)])
    speeds = learner.estimates(frozenset({T4, V100})).speeds[TRAIN]
    gain = data_sheet_speed(V100) / data_sheet_speed(T4)
    wait = min(data or 0.0, 0.95)
    assert speeds[T4] == pytest.approx(2.0)
    assert speeds[V100] / speeds[T4] == pytest.approx(1 / (wait + (1 - wait) / gain))


def test_what_was_measured_on_both_classes_counts_more_than_the_wait_on_one():
    learner = Learner()
    waits = TimeShares(data=0.6, compute=0.4, save=0.0)
    learner.learn_speeds([MeasuredSpeed(TRAIN, T4, math.log(2.0), 0.02, 720, 60.0)])
    learner.learn_speeds([MeasuredSpeed(TRAIN, V100, math.log(2.2), 0.02, 720, 60.0, waits)])
    speeds = learner.estimates(frozenset({T4, V100})).speeds[TRAIN]
    assert speeds[V100] / speeds[T4] == pytest.approx(1.1, rel=0.05)
