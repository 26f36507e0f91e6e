"""The real ``airflow hetero …``, each command in a process of its own."""

import json
import shlex
import subprocess
import sys
import threading
from configparser import ConfigParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from airflow.utils.net import get_hostname
from sqlalchemy import NullPool, create_engine

from hetero_airflow.cli.requests.explain import history_json
from hetero_airflow.cli.requests.queue import queue_entries, queue_json
from hetero_airflow.cli.workers.workers import workers_json
from hetero_airflow.executor.explanation.live_snapshot import placed_requests
from hetero_airflow.executor.recommended_settings import recommendations
from hetero_airflow.model.arguments import arguments_schema
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.worker import Inventory
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import HoldLifted, HoldPlaced, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker

RUN = "manual__2026-01-01T00:00:00+00:00"
BY_HAND = {"HETERO_AIRFLOW_SIMULATED_DEVICES": "nvidia/h100-80gb:2"}


@pytest.fixture(scope="module")
def store(installation):
    engine = create_engine(installation.url, poolclass=NullPool)
    yield SqlStore(engine)
    engine.dispose()


def test_every_call_of_airflow_pays_for_the_definitions_only():
    script = (
        "import airflow.cli.cli_config, hetero_airflow, sys; before = set(sys.modules);"
        "import hetero_airflow.cli.commands as c; c.get_commands(); print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['hetero_airflow.cli', 'hetero_airflow.cli.commands']"


def test_devices_needs_no_database(unmigrated):
    done = unmigrated.run("hetero", "devices", AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="sqlite:////nowhere/a.db", **BY_HAND)
    assert done.returncode == 0, done.stderr
    lines = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert "nvidia/h100-80gb (simulated) (gpu 0)" in lines
    assert "simulated-nvidia-h100-80gb-1" in lines
    assert lines[0].endswith("2 of them simulated")
    assert "\x1b" not in done.stdout


def test_devices_as_json_is_an_inventory(unmigrated):
    labels = {"AIRFLOW__HETERO__LABELS": '{"zone": "a"}', "FORCE_COLOR": "1"}
    done = unmigrated.run("hetero", "devices", "--json", **BY_HAND, **labels)
    inventory = Inventory.model_validate_json(done.stdout)
    assert inventory.worker.labels == {"zone": "a"}
    assert [device.id for device in inventory.worker.devices if device.simulated] == [
        "simulated-nvidia-h100-80gb-0",
        "simulated-nvidia-h100-80gb-1",
    ]
    assert inventory.worker.cpu is not None


def test_workers(installation, store):
    text = installation.output("workers")
    assert text.splitlines()[0].split() == ["WORKER", "STATE", "LAST", "SEEN", "LEASED", "/", "TOTAL"]
    for line in ("2 / 8 cpu cores", "1 / 1 nvidia/a100-sxm4-40gb", "0 / 1 nvidia/t4 (simulated)"):
        assert line in text
    assert "Worker worker-a sends no heartbeat" in text
    as_json = installation.output("workers", "--json", FORCE_COLOR="1")
    assert json.loads(as_json) == workers_json(store.snapshot(), store.last_seen(), store.telemetry())


def test_drain_and_undrain(installation, store):
    before = store.snapshot()
    text = installation.output("drain", "worker-a/SIM-0", "--move", "--reason", "new fan")
    assert text == "worker-a/SIM-0 is drained: 1 device out, new fan.\nNo task runs there.\n"
    (hold,) = store.snapshot().holds
    assert (hold.device_id, hold.cause, hold.moves) == ("SIM-0", "new fan", True)
    text = installation.output("undrain", "worker-a/SIM-0")
    assert text.startswith("worker-a/SIM-0 takes tasks again: it was drained since ")
    assert (store.snapshot().holds, store.snapshot().workers) == ((), before.workers)
    assert "found no such worker. Use worker-a." in installation.complaint("drain", "worker-b")


def test_forget(installation, store):
    assert "found no such worker" in installation.complaint("forget", "worker-b")
    assert "found that it is online. Stop its agent" in installation.complaint("forget", "worker-a")
    store.record([WorkerSeen(a_worker("old")), WorkerLost("old")], EPOCH)
    text = installation.output("forget", "old")
    assert text.startswith("Worker old is forgotten: its devices, holds, error records and key are deleted.\n")
    assert [worker.id for worker in store.snapshot().workers] == ["worker-a"]


def test_devices_says_what_the_store_knows_of_this_host(installation, store):
    hold = Hold(get_hostname(), "", HoldKind.DRAINED, "new fan", EPOCH, "undrained")
    store.record([HoldPlaced(hold)], EPOCH)
    done = installation.run("hetero", "devices", **BY_HAND)
    store.record([HoldLifted(hold.worker_id, "", HoldKind.DRAINED)], EPOCH)
    assert done.stdout.splitlines()[0].endswith("0 accelerators to lease")
    assert f"Not leasable: simulated-nvidia-h100-80gb-1: {hold}" in done.stdout


def test_queue(installation, store):
    lines = [line.rstrip() for line in installation.output("queue", COLUMNS="120").splitlines()]
    assert lines[:2] == ["Waiting: 2", lines[1]]
    assert lines[2].startswith("1  dag.waits[3]")
    assert lines[3].split()[:1] == [RUN]
    assert any(line.startswith("2  dag.[red]waits\\x1b[31m") for line in lines)
    assert f"More about the first: airflow hetero explain dag {RUN} waits --map-index 3" in lines
    assert lines[-5:-1] == [
        lines[-5],
        "run",
        "  nvidia/a100-sxm4-40gb GPU-5a3c1f2e-8c1b-4a0e-9d52-1f2f3a4b5c6d",
        "  2 cpu cores (0-1)",
    ]
    assert lines[-5].startswith("dag.placed ")
    as_json = installation.output("queue", "--json", FORCE_COLOR="1")
    snapshot = store.snapshot()
    placed = placed_requests(store._engine, [lease.request_id for lease in snapshot.leases])
    assert list(placed) == ["placed"]
    waiting = queue_entries(snapshot, PriorityPolicy().decide(snapshot, EPOCH))
    assert json.loads(as_json) == queue_json(waiting, snapshot, placed)


@pytest.mark.parametrize(
    ("task", "lines"),
    [
        (
            ["run", "placed"],
            ["Placed     on worker-a, lease granted, granted ", "was taken: the policy had no other candidate"],
        ),
        (["placed"], ["dag.placed, run run"]),
        (
            [RUN, "waits", "--map-index", "3"],
            [
                "Waiting    at position 1 of the queue",
                "Starts     unknown: it may wait for dag.placed, and their durations are unknown",
                "It would start now, on worker-a, with 1 × nvidia/t4 as one more choice, about ",
                '  device=["nvidia/a100", "nvidia/h100:2", "nvidia/t4"]',
                "  2 × nvidia/h100: 1 worker",
            ],
        ),
        (
            ["run", "refused"],
            ["No known worker can ever run this. It fails at once", "Nearest: worker worker-a has", "Ended "],
        ),
        (["run", "[red]waits\x1b[31m"], ["dag.[red]waits\\x1b[31m, run run", "0.5 of a nvidia/a100, cooperative"]),
    ],
)
def test_explain(installation, task, lines):
    text = installation.output("explain", "dag", *task)
    assert [line for line in lines if line not in text] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--map-index", "3", "dag", RUN, "waits"],
        ["dag", "--map-index", "3", RUN, "waits"],
        ["dag", RUN, "--map-index=3", "waits"],
        ["dag", RUN, "waits", "--map-index", "3"],
    ],
)
def test_explain_takes_its_options_anywhere(installation, arguments):
    assert json.loads(installation.output("explain", *arguments, "--json"))["pending"]["map_index"] == 3


def test_explain_as_json(installation, store):
    done = installation.run("hetero", "explain", "dag", RUN, "waits", "--map-index", "3", "--json", FORCE_COLOR="1")
    document = json.loads(done.stdout)
    assert document.pop("outlook") == {
        "start_s": None,
        "unknown": [{"dag_id": "dag", "task_id": "placed"}],
        "beyond_s": None,
    }
    assert document.pop("what_if")["arguments"] == 'device=["nvidia/a100", "nvidia/h100:2", "nvidia/t4"]'
    assert (document.pop("speeds"), document.pop("ends_at")) == ([], None)
    assert document == history_json(store.request_history("dag", RUN, "waits", 3))


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (
            ["[red]\x1b[31m", "run", "x"],
            "The device request of [red]\\x1b[31m.x in run run can't be used; found no run of a DAG [red]\\x1b[31m. "
            "`airflow dags list` shows the DAGs.\n",
        ),
        (
            ["dag", "run", "x"],
            "The device request of dag.x in run run can't be used; found no such task in the run. "
            "Its tasks are placed, plain, unread.\n",
        ),
        (
            ["no", "x"],
            "The device request of no.x can't be used; found no run of a DAG no. `airflow dags list` shows the DAGs.\n",
        ),
        (
            ["dag", "run", "plain"],
            "The device request of dag.plain in run run can't be used; found no request; the task instance is success. "
            "It requests no device, it does not run with HeteroExecutor, or its history was pruned.\n",
        ),
        (
            ["dag", "run", "unread"],
            "The device request of dag.unread in run run can't be used; found no request; the task instance is failed: "
            "No quota. The log of its try says more.\n",
        ),
        (
            ["dag", "rum", "plain", "--map-index", "7"],
            "The device request of dag.plain[7] in run rum can't be used; found no such run. "
            "Its newest runs are run.\n",
        ),
    ],
)
def test_explain_of_a_task_without_a_request(installation, task, text):
    assert installation.complaint("explain", *task) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["explain", "dag"], "the following arguments are required: task_id"),
        (["explain", "dag", "run", "x", "--map-index", "three"], "invalid int value: 'three'"),
        (["explain", "dag", "--csv", "run", "x"], "unrecognized arguments: --csv"),
        (["explain", "dag", "--json", "run", "x", "y"], "unrecognized arguments: y"),
        (["explain", "--json"], "the following arguments are required: dag_id"),
        (["queue", "--csv"], "unrecognized arguments: --csv"),
    ],
)
def test_bad_arguments(installation, arguments, text):
    done = installation.run("hetero", *arguments)
    assert done.returncode == 2
    assert text in " ".join(done.stderr.split()).replace("│ ", "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "table"),
    [
        (["workers"], "hetero_state"),
        (["queue", "--json"], "hetero_state"),
        (["explain", "dag", "run", "x"], "hetero_request"),
    ],
)
def test_a_database_that_is_not_migrated(unmigrated, command, table):
    assert unmigrated.complaint(*command) == (
        f"The tables hetero_* in sqlite {unmigrated.home}/airflow.db can't be used; found no such table: {table}. "
        "Run `airflow db migrate`.\n"
    )


def test_config_is_what_airflow_cfg_takes(installation):
    parser = ConfigParser()
    parser.read_string(installation.output("config"))
    assert {(section, option): value for section in parser.sections() for option, value in parser[section].items()} == {
        (each.section, each.option): each.value for each in recommendations("hetero")
    }


class HealthHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/execution/health" else 404)
        self.end_headers()

    def log_message(self, *args): ...


@pytest.fixture
def execution_api_url():
    """The address of a server that answers as Airflow's Execution API answers when it is well."""
    with HTTPServer(("127.0.0.1", 0), HealthHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/execution/"
        server.shutdown()


def test_what_config_prints_satisfies_its_check(installation, execution_api_url):
    queue = {"AIRFLOW__HETERO__QUEUE": "gpus"}
    printed = installation.run("hetero", "config", "--env", **queue).stdout
    assignments = [word for word in shlex.split(printed, comments=True) if word != "export"]
    variables = dict(word.split("=", 1) for word in assignments)
    assert json.loads(variables["AIRFLOW__SDK__QUEUE_TO_COORDINATOR"]) == {"gpus": "hetero"}
    variables["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] = execution_api_url
    done = installation.run("hetero", "config", "--check", **queue, **variables)
    assert done.returncode == 0, done.stdout
    assert [line[:7] for line in done.stdout.splitlines()] == ["ok     "] * 20 + ["All is "]
    assert "ok     [core] parallelism: 32, for 2 accelerators" in done.stdout


def test_check_of_an_installation_that_lacks_everything(unmigrated):
    bad = {"LABELS": "nonsense", "POOL": "[red]", "ENGINE": "sellery", "ENGNIE": "celery", "CHECKPOINT_URL": "ftp://a"}
    done = unmigrated.run(
        "hetero",
        "config",
        "--check",
        AIRFLOW__CORE__PARALLELISM="0",
        AIRFLOW__CORE__EXECUTION_API_SERVER_URL="http://127.0.0.1:9/execution/",
        HETERO_AIRFLOW_SIMULATED_DEVICES="x9",
        **{f"AIRFLOW__HETERO__{name}": value for name, value in bad.items()},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("    ")]
    lines[-3] = lines[-3].partition(" in sqlite")[0]
    lines[-2] = lines[-2].partition(": [Errno")[0]
    assert lines == [
        "to do  [core] executor: LocalExecutor",
        "to do  [sdk] coordinators: not set",
        "to do  [sdk] queue_to_coordinator: not set",
        "advice [workers] min_heartbeat_interval: 5",
        "advice [workers] execution_api_retries: 5",
        "advice [workers] execution_api_retry_wait_max: 90.0",
        "advice [workers] max_failed_heartbeats: 3",
        "advice [execution_api] jwt_expiration_time: 600",
        "advice [scheduler] orphaned_tasks_check_interval: 300.0",
        "advice [scheduler] task_instance_heartbeat_timeout: 300",
        "to do  [hetero] engnie: an unknown option",
        "to do  [hetero] engine = sellery: found no such engine",
        "to do  [hetero] labels = 'nonsense': found no JSON object of texts",
        "to do  HETERO_AIRFLOW_SIMULATED_DEVICES: found an unknown device in 'x9'",
        "to do  [hetero] checkpoint_url: no store for the scheme 'ftp'",
        "ok     [database] sql_alchemy_conn: SQLite, which supports only one scheduler",
        "to do  tables hetero_*: no such table: hetero_state",
        "to do  pool [red]: no answer: OperationalError",
        "to do  [core] parallelism: 0",
        "to do  one lease: the tables hetero_*",
        "to do  API server at http://127.0.0.1:9/execution/: no answer: ConnectError",
        "To do: 13 of 21. Advice: 7.",
    ]


def test_schema(unmigrated):
    done = unmigrated.run("hetero", "schema", FORCE_COLOR="1")
    assert json.loads(done.stdout) == arguments_schema()


def test_an_option_that_can_t_be_read(unmigrated):
    text = unmigrated.complaint("devices", AIRFLOW__HETERO__LABELS="[red]\x1b[31m")
    assert "[hetero] labels = '[red]\\x1b[31m' can't be used; found no JSON object of texts. Write it as " in text


def test_a_policy_that_raises_is_named_and_replaced_as_in_the_scheduler(installation, tmp_path: Path):
    (tmp_path / "broken.py").write_text(
        "class Broken:\n    def decide(self, snapshot, now):\n        raise ZeroDivisionError('by\\x1bzero')\n"
    )
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hetero_airflow.policies]\nbroken = broken:Broken\n")
    done = installation.run("hetero", "queue", "--json", AIRFLOW__HETERO__POLICY="broken", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0
    assert done.stderr == (
        "The policy broken raised ZeroDivisionError: by\\x1bzero. As in the scheduler, priority decides.\n"
    )
    assert [each["position"] for each in json.loads(done.stdout)["waiting"]] == [1, 2]


def test_a_reader_that_leaves_early_is_no_crash(unmigrated):
    done = subprocess.run(
        ["bash", "-c", f"{shlex.quote(sys.executable)} -m airflow hetero schema | head -c 1"],
        env={"AIRFLOW_HOME": str(unmigrated.home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, "Traceback" in done.stderr) == ("{", False)
