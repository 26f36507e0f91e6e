import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_airflow.checkpoints.fencing import record_key
from hetero_airflow.checkpoints.loading import read_index
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import publish
from hetero_airflow.contract.notice import NOTICE
from hetero_airflow.contract.progress import read_progress
from hetero_airflow.errors import (
    CheckpointStoreUnavailable,
    FencedOut,
    GrantRefused,
    InvalidCheckpoint,
    RequestError,
    SettingsError,
)
from hetero_airflow.runtime import checkpoint
from hetero_airflow.settings import CHECKPOINT_VARIABLE, CONTROL_VARIABLE, LEASE_VARIABLE
from hetero_airflow.testing import a_signer, a_task_lease

TOTAL = 13
"""Steps, over epochs of 5 batches: a run is resumed within one, at its end, and in a later one."""


def new_run(**environment: str) -> None:
    """As if a process began with this environment."""
    checkpoint._session.cache_clear()
    for name in (CHECKPOINT_VARIABLE, CONTROL_VARIABLE):
        os.environ.pop(name, None)
    os.environ.update(environment)


@pytest.fixture
def task(place: CheckpointPlace, control: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Begins a run of the task, with the environment that an executor gives it."""
    monkeypatch.setenv(CHECKPOINT_VARIABLE, "")
    monkeypatch.setenv(CONTROL_VARIABLE, "")

    def begin(**fields) -> None:
        described = place.model_copy(update=fields).model_dump_json()
        new_run(**{CHECKPOINT_VARIABLE: described, CONTROL_VARIABLE: str(control)})

    begin()
    return begin


def train(seed: int, at_step: Callable[[int], None] = lambda step: None) -> dict[int, float]:
    """The loss of each step that was done; all that is random comes from the seed, unless it is restored."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    inputs = torch.linspace(0, 1, 80).reshape(20, 4)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 7], gamma=0.5)
    data = checkpoint.loader(loader)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": data, "rng": checkpoint.Rng()}
    losses = {}
    for step in checkpoint.steps(TOTAL, every=3, state=parts):
        x, y = next(data)
        loss = nn.functional.mse_loss(model(x) + random.random() + np.random.rand(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses[step] = loss.item()
        at_step(step)
    return losses


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[int, float]:
    """The losses of a run that nothing interrupts."""
    with pytest.MonkeyPatch.context() as patch:
        begin_in(tmp_path_factory.mktemp("whole"), patch)
        return train(seed=1)


def begin_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(CHECKPOINT_VARIABLE, CheckpointPlace(url=folder.as_uri(), path="a/b/c/0").model_dump_json())
    patch.setenv(CONTROL_VARIABLE, str(folder))
    checkpoint._session.cache_clear()


@settings(deadline=None, max_examples=15)
@given(stop_at=st.integers(0, TOTAL - 2), has_notice=st.booleans())
@example(stop_at=4, has_notice=True)  # at the end of an epoch
def test_a_run_interrupted_at_any_step_has_the_losses_of_one_that_was_not(
    stop_at, has_notice, expected, tmp_path_factory
) -> None:
    folder = tmp_path_factory.mktemp("run")

    def interrupt(step: int) -> None:
        if step == stop_at and not has_notice:
            raise KeyboardInterrupt
        if step == stop_at:
            (folder / NOTICE).touch()

    with pytest.MonkeyPatch.context() as patch:
        begin_in(folder, patch)
        with pytest.raises((checkpoint.Stopped, KeyboardInterrupt)):
            train(seed=1, at_step=interrupt)
        checkpoint.wait()
        (folder / NOTICE).unlink(missing_ok=True)
        begin_in(folder, patch)
        first = stop_at + 1 if has_notice else stop_at // 3 * 3
        resumed = train(seed=2 if first else 1)
    assert resumed == {step: loss for step, loss in expected.items() if step >= first}


def test_the_last_save_is_the_latest_checkpoint(task, tmp_path: Path) -> None:
    assert checkpoint.latest() is None
    report = tmp_path / "report.txt"
    report.write_text("good")
    checkpoint.save(7, {"x": torch.ones(2)}, metrics={"loss": torch.tensor(0.5)}, files={"sub/report.txt": report})
    report.write_text("changed since")
    last = checkpoint.latest()
    assert (last.step, last.metrics, last.is_final) == (7, {"loss": 0.5}, False)
    assert last.state["x"].tolist() == [1, 1]
    assert (last.files / "sub" / "report.txt").read_text() == "good"
    assert checkpoint.latest() is last


def test_a_new_run_finds_it(task) -> None:
    checkpoint.save(1, 1, wait=True)
    checkpoint.save(2, 2, wait=True, final=True)
    task()
    last = checkpoint.latest()
    assert (last.step, last.state, last.is_final, list(last.files.iterdir())) == (2, 2, True, [])


def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(task, folder_of_place: Path, caplog) -> None:
    for step in (1, 2):
        checkpoint.save(step, torch.full((100,), float(step)), wait=True)
    tensors = next(folder_of_place.glob("000000000002-*/tensors-*"))
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    task()
    last = checkpoint.latest()
    assert (last.step, last.state[0].item()) == (1, 1.0)
    assert "damaged" in caplog.text


def test_an_old_run_is_fenced_out_when_a_new_run_loads(task) -> None:
    task(token=3)
    checkpoint.save(1, "old", wait=True)
    old = checkpoint.session()
    task(token=4)
    assert checkpoint.latest().state == "old"
    with pytest.raises(FencedOut):
        old.save(2, "old", metrics=None, files=None, wait=True, final=False)
    checkpoint.save(2, "new", wait=True)
    task(token=3)
    with pytest.raises(FencedOut):
        checkpoint.latest()
    task(token=5)
    assert checkpoint.latest().state == "new"


def test_a_run_publishes_with_the_token_that_its_scheduler_has_signed_and_no_other(task, monkeypatch) -> None:
    path = checkpoint.session().place.path
    signer, stranger = a_signer(), a_signer()
    grant = signer.sign(lease="l.7", token=7, task=path, start_by=0)
    own = stranger.sign(lease="l.8", token=10**6, task=path, start_by=0)
    record_key(checkpoint.session().store, signer.public_key)
    monkeypatch.setenv(LEASE_VARIABLE, a_task_lease(id="l.7", token=7, grant=grant.pack()).model_dump_json())
    task(token=7)
    checkpoint.save(1, {"weights": 1}, wait=True)
    for asked, id_, token, packed in [
        (10**6, "l.7", 7, grant.pack()),
        (10**6, "l.7", 10**6, grant.pack()),
        (10**6, "l.8", 10**6, own.pack()),
        (7, "l.7", 7, grant.pack()[:-9]),
        (7, "l.7", 7, grant.pack().rpartition(".")[0]),
        (7, "l.7", 7, ""),
    ]:
        forged = a_task_lease(id=id_, token=token, grant=packed)
        monkeypatch.setenv(LEASE_VARIABLE, forged.model_dump_json())
        task(token=asked)
        with pytest.raises(GrantRefused, match=rf"Token {asked} for .* can't be used; found .*grant"):
            checkpoint.latest()
    monkeypatch.delenv(LEASE_VARIABLE)
    task(token=10**6)
    with pytest.raises(GrantRefused, match="found no grant, where the run with token 7 had one"):
        checkpoint.save(2, {"weights": 2}, wait=True)
    assert [entry.step for entry in read_index(checkpoint.session().store, path).entries] == [1]


def test_an_error_in_the_background_is_raised_by_the_next_call(task, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise CheckpointStoreUnavailable("write", found="No space left on device", remedy="Free space")

    with monkeypatch.context() as patch:
        patch.setattr("hetero_airflow.runtime.checkpoint_session.publish", full)
        checkpoint.save(1, "lost")
        checkpoint.session()._saver._threads.submit(int).result()
    with pytest.raises(CheckpointStoreUnavailable, match="No space"):
        checkpoint.save(2, "not begun")
    checkpoint.save(3, "kept")
    checkpoint.wait()
    assert checkpoint.latest().step == 3


@pytest.mark.parametrize("step", [-1, 1.0, True, None, "3", 10**12])
def test_a_value_that_is_not_a_step_is_refused(step, task, folder_of_place: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="step="):
        checkpoint.save(step, {})
    assert not folder_of_place.exists()


def test_a_step_of_numpy_is_a_step(task) -> None:
    checkpoint.save(np.int64(3), {}, wait=True)
    assert checkpoint.latest().step == 3


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "a\0b", "x" * 10_000, "a//b", "a\nb", "./a"])
def test_a_file_name_that_would_leave_the_checkpoint_is_refused(name, task, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.touch()
    checkpoint.save(1, "before", wait=True)
    with pytest.raises(InvalidCheckpoint):
        checkpoint.save(2, {}, files={name: source})
    assert checkpoint.latest().step == 1


def test_a_path_that_is_not_a_file_is_refused(task, tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, "/dev/null"):
        with pytest.raises(InvalidCheckpoint, match="can't save the file"):
            checkpoint.save(1, {}, files={"x": path})


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), None, "low", torch.tensor([1.0, 2.0])])
def test_a_metric_that_is_no_number_publishes_nothing(loss, task) -> None:
    checkpoint.save(1, {}, metrics={"loss": 1}, wait=True)
    with pytest.raises(InvalidCheckpoint, match="loss"):
        checkpoint.save(2, {}, metrics={"loss": loss})
    assert checkpoint.latest().step == 1


def test_a_foreign_pickle_in_a_checkpoint_is_refused(task, tmp_path: Path) -> None:
    opened = tmp_path / "opened"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (opened,))

    session = checkpoint.session()
    folder = session.folder()
    torch.save(Evil(), folder / "tensors-00000-of-00001.safetensors")
    (folder / "state.json").write_text('{"$": "torch", "array": "state"}')
    session.submit(1, folder, lambda: None, metrics={}, final=False)
    with pytest.raises(InvalidCheckpoint, match="pickle"):
        _ = checkpoint.latest().state
    assert not opened.exists()


def test_a_save_outside_of_a_loop_stops_after_a_notice(task, notice) -> None:
    checkpoint.save(1, {})
    assert not checkpoint.should_stop()
    assert not checkpoint.is_due()
    notice()
    assert checkpoint.should_stop()
    assert checkpoint.is_due()
    with pytest.raises(checkpoint.Stopped) as stopped:
        checkpoint.save(2, {})
    assert stopped.value.step == 2
    checkpoint.save(3, {}, final=True)
    assert checkpoint.latest().step == 3


def test_bad_arguments_of_a_loop_are_refused_before_it_begins(task, folder_of_place: Path) -> None:
    with pytest.raises(RequestError):
        checkpoint.steps(10, every="0s")
    assert not folder_of_place.exists()


def test_a_place_that_cannot_be_read_is_refused(task) -> None:
    new_run(**{CHECKPOINT_VARIABLE: '{"url": 3}'})
    with pytest.raises(SettingsError, match=CHECKPOINT_VARIABLE):
        checkpoint.latest()


def test_without_an_executor_checkpoints_are_in_a_folder_beside_the_script(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HETERO_")}
    code = (
        "import sys\n"
        "from hetero_airflow.runtime import checkpoint\n"
        "last = checkpoint.latest()\n"
        "print(last.step if last else None)\n"
        "checkpoint.save(last.step + 1 if last else 0, {'a': (1, 2)})\n"
        "assert not {'airflow', 'sqlalchemy', 'torch', 'boto3'} & set(sys.modules)\n"
    )
    for expected in ("None", "0", "1"):
        ended = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{expected}\n", "")
    assert (tmp_path / "checkpoints" / "local" / "index.json").is_file()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_state_of_a_gpu_is_resumed_on_the_cpu(task) -> None:
    model = nn.Linear(3, 3).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3, device="cuda")).sum().backward()
    optimizer.step()
    checkpoint.save(0, {"model": model, "optimizer": optimizer, "rng": checkpoint.Rng()}, wait=True)
    task()
    state = checkpoint.latest().state
    assert state["model"]["weight"].device.type == "cpu"
    restored = nn.Linear(3, 3)
    other_optimizer = torch.optim.Adam(restored.parameters())
    restored.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    checkpoint.Rng().load_state_dict(state["rng"])
    assert restored.weight.equal(model.weight.cpu())
    assert all(value.device.type == "cpu" for part in other_optimizer.state.values() for value in part.values())


def test_metrics_are_those_of_the_time_of_the_save(task, monkeypatch) -> None:
    held = threading.Lock()

    def slow(*arguments, **named):
        with held:
            return publish(*arguments, **named)

    monkeypatch.setattr("hetero_airflow.runtime.checkpoint_session.publish", slow)
    metrics = {"loss": 0.5}
    with held:
        checkpoint.save(1, {}, metrics=metrics)
        metrics["loss"] = 9
    assert checkpoint.latest().metrics == {"loss": 0.5}


@pytest.mark.parametrize("is_host_bound", [False, True])
def test_a_place_that_only_this_host_sees_gives_one_warning_and_no_saved_time(task, control, caplog, is_host_bound):
    task(is_host_bound=is_host_bound)
    for step in (1, 2):
        checkpoint.save(step, {}, wait=True)
    progress = read_progress(control)
    assert (progress.saved_step, progress.saved_at is None) == (2, is_host_bound)
    task(is_host_bound=is_host_bound)
    assert checkpoint.latest().step == 2
    assert (read_progress(control).saved_at is None) == is_host_bound
    warnings = [record for record in caplog.records if "starts at step 0" in record.getMessage()]
    assert len(warnings) == (2 if is_host_bound else 0), "once in each run"
