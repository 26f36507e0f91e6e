"""kill -9 and SIGSTOP of the task, its supervisor, and Airflow's own components."""

import json
import signal
import time
from dataclasses import replace

import psutil

from tests.chaos.scene import Injury, Scene, Training


def task(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the task's process."""
    training = scene.train()
    scene.some_step(training)
    return training, training.wound()


def torchrun_rank(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of one of torchrun's ranks: they start again from the last checkpoint, and Airflow sees one run."""
    training = scene.train("torchrun")
    scene.some_step(training)
    ranks = [json.loads(line) for line in training.journal.with_name("journal.jsonl.ranks").read_text().splitlines()]
    injury = training.injury()
    psutil.Process(scene.rng.choice(ranks)["pid"]).kill()
    training.finish()
    assert len(training.starts()) == 2
    assert training.found_s(injury, scene.database) is None, "the task itself was started again"
    return training, injury


def supervisor(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the process that looks after the task: the task dies with it, and no process reports its end."""
    training = scene.train()
    scene.some_step(training)
    parent, injury = training.supervisor(), training.injury()
    parent.kill()
    return training, injury


def scheduler(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the scheduler while one training runs and one waits for its devices; then of the one that runs."""
    training = scene.train(steps=100)
    training.wait_for_step(1)
    waiting = scene.train("everywhere")
    scene.some_step(training)
    scene.airflow.kill("scheduler")
    time.sleep(scene.rng.uniform(0, 3))
    scene.launch_scheduler()
    scene.some_step(training, training.step() + 1, training.step() + 12)
    injury = training.wound()
    waiting.finish()
    return training, injury


def scheduler_host(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the scheduler and of all its processes: LocalExecutor's processes, supervisors and tasks."""
    training = scene.train()
    scene.some_step(training)
    below = psutil.Process(scene.airflow.pid("scheduler")).children(recursive=True)
    injury = training.injury()
    scene.airflow.kill("scheduler")
    for process in below:
        if process.is_running():
            process.kill()
    return training, replace(injury, framework_s=scene.launch_scheduler())


def triggerer(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the triggerer while a sensor in it waits for the training's last checkpoint."""
    training = scene.train()
    run_id = scene.airflow.trigger("watch", {"run_id": training.run_id})
    scene.wait_until(lambda: scene.airflow.tasks("watch", run_id)[0]["state"] == "deferred", "the sensor to wait")
    scene.some_step(training)
    injury = training.injury()
    scene.restart("triggerer")
    state = scene.airflow.wait_for_run("watch", run_id)
    assert state == "success", f"the sensor ended as {state}"
    return training, injury


def api_server(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of the API server, which gets the heartbeats of tasks."""
    training = scene.train()
    scene.some_step(training)
    injury = training.injury()
    scene.restart("api-server")
    return training, injury


def database(scene: Scene) -> tuple[Training, Injury]:
    """PostgreSQL is stopped as for an upgrade: it ends all sessions, and comes back after some seconds."""
    training = scene.train()
    scene.some_step(training)
    injury = training.injury()
    scene.postgres.stop()
    time.sleep(scene.rng.uniform(0, 5))
    scene.postgres.start()
    return training, injury


def database_kill(scene: Scene) -> tuple[Training, Injury]:
    """kill -9 of PostgreSQL's main process: it recovers from its log when it comes back."""
    training = scene.train()
    scene.some_step(training)
    injury = training.injury()
    scene.postgres.kill()
    time.sleep(scene.rng.uniform(0, 5))
    scene.postgres.start()
    return training, injury


def stopped_task(scene: Scene) -> tuple[Training, Injury]:
    """SIGSTOP of the task, and SIGCONT before Airflow treats it as lost: it goes on as before."""
    training = scene.train()
    scene.some_step(training)
    process = training.process()
    injury = training.wound(signal.SIGSTOP)
    time.sleep(scene.rng.uniform(1, 6))
    process.send_signal(signal.SIGCONT)
    training.finish()
    assert len(training.starts()) == 1, "a task that was stopped for seconds was started again"
    return training, injury


def hung_task(scene: Scene) -> tuple[Training, Injury]:
    """SIGSTOP of the task for good: it hangs, gets a notice to save, can't, is killed, and runs again."""
    training = scene.train()
    scene.some_step(training)
    training.wait_for_checkpoint()
    return training, training.wound(signal.SIGSTOP)


def stopped_worker(scene: Scene) -> tuple[Training, Injury]:
    """SIGSTOP of the task and its supervisor, as on a frozen host. SIGCONT once the task runs again elsewhere."""
    training = scene.train()
    scene.some_step(training)
    process, parent = training.process(), training.supervisor()
    injury = training.injury()
    parent.suspend()
    process.suspend()
    scene.wait_until(lambda: len(training.starts()) > 1, "another one to go on")
    for stopped in (parent, process):
        if stopped.is_running():
            stopped.resume()
    training.finish()
    return training, injury
