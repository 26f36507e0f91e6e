"""What a check of the installation finds, and the trial of the checkpoint store on a real folder."""

import pytest
from sqlalchemy import make_url

from hetero_airflow.checkpoints.fencing import KEY
from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.cli.setup import trials
from hetero_airflow.cli.setup.checks import (
    Finding,
    Setting,
    check_checkpoints,
    check_device_users,
    check_driver,
    check_engines,
    check_heartbeats,
    check_parallelism,
    check_pool,
    check_problems,
    check_report,
    check_settings,
)
from hetero_airflow.errors import CheckpointStoreUnavailable
from hetero_airflow.executor.recommended_settings import Recommendation
from hetero_airflow.model.device import UNCOVERED_KEY
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.testing import a_cpu, a_device, a_signer, a_worker

POOL_COST = "Airflow queues no device task"
DRIVER = "[database] sql_alchemy_conn"


def test_a_setting_that_differs_says_what_to_set_and_what_it_costs():
    recommendation = Recommendation("sdk", "coordinators", "1", "a device idles", "nothing")
    settings = [Setting(recommendation, current, "1") for current in ("5", None, "1")]
    assert list(check_settings(settings)) == [
        Finding("[sdk] coordinators", "5", "Set it to 1", "a device idles"),
        Finding("[sdk] coordinators", "not set", "Set it to 1", "a device idles"),
        Finding("[sdk] coordinators", "1"),
    ]


def test_a_setting_without_which_device_tasks_run_is_advice():
    recommendation = Recommendation("workers", "interval", "1", "a device idles", "nothing")
    (finding,) = check_settings([Setting(recommendation, "5", "1")])
    assert finding == Finding("[workers] interval", "5", "Set it to 1", "a device idles", is_advice=True)


@pytest.mark.parametrize(
    ("interval", "timeout", "remedy"),
    [
        ("5", "300", None),
        ("5", "15", None),
        ("5", "14", "Set the timeout to 15 or more"),
        ("x", "14", None),
        (None, None, None),
    ],
)
def test_a_timeout_must_hold_three_heartbeats(interval, timeout, remedy):
    options = {"min_heartbeat_interval": interval, "task_instance_heartbeat_timeout": timeout}
    findings = list(check_heartbeats(lambda section, option: options[option]))
    assert [finding.remedy for finding in findings] == ([remedy] if remedy else [])


CHECKPOINTS = "[hetero] checkpoint_url"


@pytest.mark.parametrize("engine", ["celery", "edge", "kubernetes"])
def test_engines_with_several_hosts_need_a_shared_place_of_checkpoints(engine):
    (lacking,) = check_checkpoints(engine, "")
    assert (lacking.subject, lacking.is_ok) == (CHECKPOINTS, False)
    assert "AIRFLOW_HOME of each host" in lacking.found
    assert "s3://bucket/prefix" in lacking.remedy
    assert "starts at step 0" in lacking.cost
    assert list(check_checkpoints(engine, "file:///shared")) == [
        Finding(CHECKPOINTS, "file:///shared; all hosts must share this folder")
    ]
    assert list(check_checkpoints(engine, "s3://models/a")) == [Finding(CHECKPOINTS, "s3://models/a")]
    for url in ("shared/folder", "s3://key:secret@models"):
        (unreadable,) = check_checkpoints(engine, url)
        assert not unreadable.is_ok
        assert "secret" not in str(unreadable)


def test_on_one_host_checkpoints_need_no_place_of_their_own():
    assert list(check_checkpoints("local", "")) == []


@pytest.mark.parametrize(
    ("url", "finding"),
    [
        ("sqlite:////a.db", Finding(DRIVER, "SQLite, which supports only one scheduler")),
        ("postgresql+psycopg2://u:secret@h/d", Finding(DRIVER, "postgresql+psycopg2")),
        ("postgresql+psycopg://u:secret@h/d", Finding(DRIVER, "postgresql+psycopg")),
        (
            "postgresql://u:secret@h/d",
            Finding(
                DRIVER,
                "postgresql://",
                "Write postgresql+psycopg2://",
                "SQLAlchemy 2.1 reads it as psycopg 3, other versions as psycopg2",
            ),
        ),
        (
            "mysql+pymysql://u:secret@h/d",
            Finding(
                DRIVER,
                "mysql+pymysql",
                "Use postgresql+psycopg2:// or SQLite",
                "leases are tested to be exclusive on these two only",
            ),
        ),
    ],
)
def test_the_driver_is_named_and_no_secret(url, finding):
    assert check_driver(make_url(url)) == finding


@pytest.mark.parametrize(
    ("slots", "finding"),
    [
        (-1, Finding("pool p", "no limit")),
        (4, Finding("pool p", "4 slots: at most this number of device tasks waits or runs at a time")),
        (0, Finding("pool p", "0 slots", "Set its slots to -1, no limit", POOL_COST)),
        (
            None,
            Finding(
                "pool p", "no such pool", "Start the scheduler once with HeteroExecutor, which creates it", POOL_COST
            ),
        ),
    ],
)
def test_the_pool_must_be_there_and_have_room(slots, finding):
    assert check_pool("p", slots) == finding


def test_parallelism_must_let_every_accelerator_work():
    snapshot = Snapshot(
        1,
        (
            a_worker("a", (a_cpu(), a_device("0"), a_device("1"), a_device("2", leasable=False))),
            a_worker("lost", (a_device("0"),), state=WorkerState.LOST),
        ),
    )
    subject = "[core] parallelism"
    assert check_parallelism("2", snapshot, "local") == Finding(subject, "2, for 2 accelerators")
    assert check_parallelism("1", None, "local") == Finding(subject, "1; no worker has reported its devices yet")
    assert check_parallelism("1", snapshot, "local") == Finding(
        subject,
        "1, for 2 accelerators",
        "Set it to 2 or more",
        "only 1 task can run at a time, and other devices stay idle",
    )


def test_workers_to_which_the_engine_sends_nothing_are_named():
    own, other = a_worker("own"), a_worker("gpu-1", (a_device("0"),), engine="celery")
    snapshot = Snapshot(1, (own, other, a_worker("gpu-2", engine="celery", state=WorkerState.LOST)))
    assert list(check_engines("local", snapshot)) == [
        Finding(
            "[hetero] engine",
            "local; online: gpu-1 (celery)",
            "Set it to celery, or end the agents there",
            "these workers get no task",
        )
    ]
    assert list(check_engines("local", Snapshot(1, (own,)))) == []
    assert check_parallelism("1", snapshot, "local").found == "1, for 2 accelerators"  # those of `own`


@pytest.mark.parametrize("value", ["0", "-1", "many", "", None])
def test_parallelism_must_be_a_number(value):
    expected = Finding("[core] parallelism", str(value), "Set it to a number above 0", "no executor starts")
    assert check_parallelism(value, None, "local") == expected


def test_a_device_whose_users_nobody_can_see_is_named():
    gpu, fpga = a_device("GPU-0"), a_device("fpga0", details={UNCOVERED_KEY: True})
    only_cpu = Snapshot(1, workers=(a_worker(devices=(a_cpu(), a_device(simulated=True))),))
    assert list(check_device_users(only_cpu)) == []
    seen = Snapshot(1, workers=(a_worker(devices=(a_cpu(), gpu)),))
    assert list(check_device_users(seen)) == [Finding("users of devices", "seen on 1 accelerator")]
    (finding,) = check_device_users(Snapshot(1, workers=(a_worker("node-7", devices=(gpu, fpga)),)))
    assert (finding.found, finding.is_ok) == ("not covered: node-7/fpga0", False)


def test_a_problem_line_of_discovery_is_a_finding_and_the_state_of_a_node_is_none():
    line = "amd: amd-smi's answer has no list of GPUs"
    host, node = a_worker("host-a", problems=(line,)), a_worker("node-7", problems=("the node is cordoned",))
    lost = a_worker("host-b", problems=(line,), state=WorkerState.LOST)
    cost = "devices of this worker may be missing, or get no task"
    finding = Finding("devices of worker host-a", line, "Do what the line says", cost)
    assert list(check_problems(Snapshot(1, workers=(host, node, lost)))) == [finding]


def test_the_report_says_what_to_do_below_what_was_found(render):
    findings = [Finding("a", "1"), Finding("b\x1b[31m", "2", "Set it to 3", "it is slow"), Finding("c", "4", "Wait")]
    assert (
        render(check_report(findings))
        == """\
ok     a: 1
to do  b\\x1b[31m: 2
       Set it to 3.
       Without it, it is slow.
to do  c: 4
       Wait.
To do: 2 of 3."""
    )


def test_the_report_tells_advice_from_what_is_to_do(render):
    findings = [Finding("a", "1"), Finding("b", "2", "Set it to 3", is_advice=True)]
    text = "ok     a: 1\nadvice b: 2\n       Set it to 3.\nTo do: 0 of 2. Advice: 1."
    assert render(check_report(findings)) == text


def test_the_report_of_a_sound_installation(render):
    assert render(check_report([Finding("a", "1")])) == "ok     a: 1\nAll is well."


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", tmp_path.as_uri())
    return tmp_path


def test_nothing_is_left_of_a_trial(folder):
    trials._save_and_read()
    assert list(folder.rglob("*")) == []


def test_nothing_is_left_of_a_trial_that_failed(folder, monkeypatch):
    monkeypatch.setattr(FilesystemStore, "read", lambda self, key, **limits: None)
    with pytest.raises(CheckpointStoreUnavailable, match="another content"):
        trials._save_and_read()
    assert list(folder.rglob("*")) == []


def test_a_check_records_the_key_for_grants_and_finds_that_of_another_installation(folder, monkeypatch, tmp_path):
    signers = [a_signer(), a_signer()]
    monkeypatch.setattr(trials, "try_lease", lambda engine, now: None)
    monkeypatch.setattr(trials, "_api_server", lambda: Finding("api", "1"))
    monkeypatch.setattr(trials, "grant_signer", lambda engine: signers[0])
    name = "the key for grants"
    (finding,) = [finding for finding in trials.trials(None) if finding.subject == name]
    assert (finding.is_ok, (folder / KEY).read_text()) == (True, signers[0].public_key)
    monkeypatch.setattr(trials, "grant_signer", lambda engine: signers[1])
    (finding,) = [finding for finding in trials.trials(None) if finding.subject == name]
    assert (finding.is_ok, (folder / KEY).read_text()) == (False, signers[0].public_key)
    assert f"remove {KEY} from it and run `airflow hetero config --check`" in finding.remedy


@pytest.mark.parametrize(
    ("engine", "names", "found"),
    [
        ("local", "json", "json can be preloaded here"),
        ("celery", "json,no_such_module", "the import of no_such_module raised ModuleNotFoundError"),
        ("edge", "json", "no effect with engine = edge"),
    ],
)
def test_a_check_tries_what_is_to_be_preloaded(monkeypatch, engine, names, found):
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", engine)
    monkeypatch.setenv("AIRFLOW__HETERO__PRELOAD", names)
    (finding,) = trials._preload()
    assert finding.found.startswith(found)
    assert finding.is_ok is ("can be" in found)


@pytest.mark.parametrize("names", ["", "no name"])
def test_without_preload_nothing_is_tried(monkeypatch, names):
    monkeypatch.setenv("AIRFLOW__HETERO__PRELOAD", names)
    assert list(trials._preload()) == []


def test_the_folder_of_another_trial_stays(folder):
    (folder / "hetero_check" / "trial-1").mkdir(parents=True)
    trials._save_and_read()
    assert [path.name for path in folder.rglob("*")] == ["hetero_check", "trial-1"]
