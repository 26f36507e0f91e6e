"""Compiled code of an earlier run is used only if a run of this very task has kept it."""

import os
import tarfile

import pytest

from hetero_airflow.runtime.compute import compiled_code
from hetero_airflow.runtime.compute.compiled_code import CACHE_VARIABLE, Bundle, CompiledCode
from hetero_airflow.settings import TASK_SECRET_VARIABLE


@pytest.fixture
def new_process(begin, monkeypatch, forget_compiled):
    """What a new process of a task has: an empty folder, and the task's secret."""

    def made(secret="of this task"):
        forget_compiled()
        monkeypatch.setenv(TASK_SECRET_VARIABLE, secret)
        return CompiledCode(begin())

    return made


@pytest.fixture
def kept(new_process):
    """The bundle of an earlier run."""
    code = new_process()
    (code._folder / "fx").mkdir()
    (code._folder / "fx/graph").write_text("code")
    (code._folder / "fx/graph.lock").touch()
    return code.keep("model")


def test_the_next_run_has_the_files_of_an_earlier_one(new_process, kept):
    code = new_process()
    assert (code.count(), code.fill("model", kept)) == (0, True)
    assert os.environ[CACHE_VARIABLE] == str(code._folder)
    assert [path.read_text() for path in code._folder.rglob("*") if path.is_file()] == ["code"]
    assert code.keep("model").signature != code.keep("other").signature


def packed_of(folder_of_place, bundle):
    return folder_of_place.parent.parent / "compiled.d" / bundle.digest / "code.tar.gz"


def replaced(packed):
    packed.chmod(0o600)
    packed.write_bytes(b"x" * packed.stat().st_size)


FORGED = {
    "signed by nobody": lambda bundle, _: bundle.model_copy(update={"signature": ""}),
    "signed with a guess": lambda bundle, _: bundle.model_copy(update={"signature": "0" * 64}),
    "another size": lambda bundle, _: bundle.model_copy(update={"size_bytes": bundle.size_bytes + 1}),
    "another digest": lambda bundle, _: bundle.model_copy(update={"digest": "0" * 64}),
    "other content": lambda _, packed: replaced(packed),
    "cut off": lambda _, packed: os.truncate(packed, 10),
    "longer": lambda _, packed: packed.write_bytes(packed.read_bytes() + b"more"),
    "gone": lambda _, packed: packed.unlink(),
}
"""Each changes the entry or the file."""


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_bundle_is_as_if_there_was_none(new_process, kept, folder_of_place, kind):
    packed = packed_of(folder_of_place, kept)
    packed.chmod(0o600)
    changed = FORGED[kind](kept, packed)
    code = new_process()
    assert not code.fill("model", changed if isinstance(changed, Bundle) else kept)
    assert code.count() == 0


def test_a_bundle_of_another_model_task_or_scheduler_is_as_if_there_was_none(new_process, kept, begin, place):
    assert not new_process().fill("another model", kept)
    assert not new_process(secret="of another task").fill("model", kept)
    assert not new_process(secret="").fill("model", kept)
    moved = new_process()
    moved._prefix = "other/task/compiled.d"
    assert not moved.fill("model", kept)


def test_a_path_that_leaves_the_folder_writes_nothing(new_process, tmp_path):
    code = new_process()
    (tmp_path / "evil").write_text("code")
    archive = tmp_path / "own.tar.gz"
    with tarfile.open(archive, "w:gz") as written:
        written.add(tmp_path / "evil", arcname="../../evil")
    digest = compiled_code._sha256(archive)
    code._store.put(code._key(digest), archive)
    bundle = Bundle(digest=digest, size_bytes=archive.stat().st_size, signature="")
    signed = bundle.model_copy(update={"signature": code._signature("model", bundle)})
    assert not code.fill("model", signed)
    assert code.count() == 0


def test_old_bundles_are_deleted_and_no_run(new_process, kept, folder_of_place, monkeypatch):
    monkeypatch.setattr(compiled_code, "_FRESH_S", -1.0)
    code = new_process()
    (code._folder / "graph").write_text("newer")
    newer = code.keep("model")
    run = folder_of_place.parent.parent / "compiled" / "-1"
    run.mkdir(parents=True)
    code.sweep({newer.digest})
    assert (packed_of(folder_of_place, newer).exists(), packed_of(folder_of_place, kept).exists()) == (True, False)
    assert run.exists()


def test_the_users_own_folder_stays(begin, monkeypatch, tmp_path, kept):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    compiled_code._own_folder.cache_clear()
    code = CompiledCode(begin())
    assert (code.fill("model", kept), code.keep("model"), os.environ[CACHE_VARIABLE]) == (False, None, str(tmp_path))
