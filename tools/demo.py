"""``make demo``: runs the DAG `retrain_digits` on this machine's best device, and shows why it ran there.

It starts a real Airflow in ``.airflow/demo``, which it empties first, and stops it at the end.
"""

import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foreground import ROOT, StillRunning, refuse_second, running_airflow
from local_airflow import LocalAirflow
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hetero_airflow.cli.output import cell, console, show, table
from hetero_airflow.cli.workers.devices import device_report
from hetero_airflow.discovery.discover import discover
from hetero_airflow.executor.explanation.device_text import lease_lines
from hetero_airflow.store.codec import ACCOUNT
from hetero_airflow.store.store import RequestHistory

DAG_ID = "retrain_digits"
HOME = ROOT / ".airflow" / "demo"
TASKS = ("prepare_training", "prepare_held_out", "train", "evaluate", "predict_batch", "publish")
LOG_LINES = 40


class DemoFailed(Exception):
    """The run failed; the text says why and where to look."""


def main() -> int:
    """Run the demo; return 0 if the run succeeded, 1 if not, 130 after an interrupt."""
    begin = time.monotonic()
    try:
        refuse_second(HOME)
        shutil.rmtree(HOME, ignore_errors=True)
        show(*device_report(discover(socket.gethostname())), cell(), cell(f"Starting Airflow in {HOME} …"))
        with running_airflow(HOME, is_scheduling=False) as airflow:
            show(cell(f"Airflow answered after {time.monotonic() - begin:.0f} s at {airflow.url}"))
            run_id = airflow.trigger(DAG_ID)
            show(cell(f"Run {run_id} of {DAG_ID}:"))
            state = follow(airflow, run_id)
            tasks = {task["task_id"]: task for task in airflow.tasks(DAG_ID, run_id)}
            if state != "success":
                raise DemoFailed("\n".join(failure(airflow, run_id, tasks)))
            show(cell(), placements(airflow, run_id, tasks), cell(), *results(airflow, run_id, tasks))
    except KeyboardInterrupt:
        show(cell("Interrupted."))
        return 130
    except StillRunning as error:
        show(cell(error, style="red"))
        return 1
    except (DemoFailed, RuntimeError, TimeoutError) as error:
        show(cell(*str(error).splitlines(), style="red"))
        show(cell(f"Logs are in {HOME / 'logs'} (tasks) and {HOME}/*.log (Airflow)."))
        return 1
    show(cell(f"Done in {time.monotonic() - begin:.0f} s."))
    return 0


def follow(airflow: LocalAirflow, run_id: str, timeout_s: float = 300) -> str:
    """Show the states of the tasks until the run ends; return its state. A pipe gets one line per change."""
    states = dict.fromkeys(TASKS, "")
    end = time.monotonic() + timeout_s
    output = console()
    with Live(console=output, auto_refresh=False, transient=True) as live:
        while time.monotonic() < end:
            airflow.is_healthy()  # raises if one of its processes has ended
            run_state = str(airflow.api("GET", f"/dags/{DAG_ID}/dagRuns/{run_id}")["state"])
            for task in airflow.tasks(DAG_ID, run_id):
                name, state = task["task_id"], task["state"] or ""
                if states[name] != state and state not in ("", "scheduled") and not output.is_terminal:
                    show(cell(f"  {name}: {state}"))
                states[name] = state
            if output.is_terminal:
                live.update(_state_table(states), refresh=True)
            if run_state in ("success", "failed"):
                return run_state
            time.sleep(0.5)
    raise DemoFailed(f"The run did not end within {timeout_s:g} s; its tasks: {states}")


def _state_table(states: dict[str, str]) -> Table:
    rows = [(cell(f"  {name}"), cell(state or "not yet", style=style(state))) for name, state in states.items()]
    return table(("", ""), rows)


def style(state: str) -> str:
    """The style of a state."""
    return {"success": "green", "failed": "red", "upstream_failed": "red", "running": "bold cyan"}.get(state, "dim")


def placements(airflow: LocalAirflow, run_id: str, tasks: Mapping[str, Mapping[str, Any]]) -> Table:
    """Where each task ran and why, and how long it took; from the accounts of decisions in the store."""
    store = airflow.store()
    workers = {worker.id: worker for worker in store.snapshot().workers}
    rows = []
    for name in TASKS:
        request_history, task = store.request_history(DAG_ID, run_id, name), tasks[name]
        where, why, waited = cell("none"), cell("it requests none"), cell("")
        if request_history is not None and request_history.leases:
            lease = request_history.leases[-1]
            where = cell(*lease_lines(lease, workers.get(lease.worker_id)))
            why = cell(*reasons(request_history))
            waited_s = (lease.granted_at - request_history.pending.submitted_at).total_seconds()
            waited = cell(f"{max(0.0, waited_s):.1f}")  # the cycle may have begun before the task came
        ran = cell(f"{task['duration'] or 0:.1f}")
        rows.append((cell(name), where, why, waited, ran, cell(task["state"], style=style(task["state"]))))
    return table(("TASK", "DEVICE", "WHY THIS DEVICE", "WAITED S", "RAN S", "STATE"), rows)


def reasons(request_history: RequestHistory) -> Iterator[str]:
    """Why the newest lease has its place: why earlier alternatives were ruled out, and its score."""
    decision = next((candidate for candidate in request_history.decisions if candidate["outcome"] == "place"), None)
    if decision is None:
        yield "the account of its decision was deleted"
        return
    account = ACCOUNT.validate_python(decision["account"])
    chosen = request_history.leases[-1].alternative
    for alternative in account.alternatives[:chosen]:
        yield f"not {alternative.asked}: {alternative.filtered[0][1] if alternative.filtered else 'nothing free'}"
    for alternative in account.alternatives[chosen : chosen + 1]:
        if len(alternative.candidates) == 1:
            yield f"{alternative.asked}: the only worker that fits"
        for best in alternative.candidates[: len(alternative.candidates) > 1]:
            terms = " + ".join(f"{name} {value:.3g}" for name, value in best.terms.items())
            yield f"{alternative.asked}: the best of {len(alternative.candidates)} workers, {best.score:.3g} = {terms}"


def results(airflow: LocalAirflow, run_id: str, tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[Text]:
    """The accuracy, and the path of the model if it was published."""
    accuracy = airflow.xcom(DAG_ID, run_id, "evaluate")
    yield cell(f"Accuracy: {accuracy:.2%} of the evaluation images")
    if tasks["publish"]["state"] == "success":
        model = Path(airflow.xcom(DAG_ID, run_id, "publish"))
        yield cell(f"Model:    {model}", f"Its card: {model.with_suffix('.json')}")
    else:
        yield cell("The model is not published: its accuracy is below the DAG's threshold.")


def failure(airflow: LocalAirflow, run_id: str, tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The failed tasks, with the ends of their logs."""
    failed = [name for name, task in tasks.items() if task["state"] == "failed"]
    yield f"The run {run_id} failed: {', '.join(failed) or 'no task failed'}."
    for name in failed:
        yield f"The end of the log of {name}:"
        log = airflow.log_text(DAG_ID, run_id, name, max(tasks[name]["try_number"], 1))
        yield from [f"  {line}" for line in log.splitlines() if not line.startswith("::")][-LOG_LINES:]


if __name__ == "__main__":
    sys.exit(main())
