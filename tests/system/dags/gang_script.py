"""The training of one rank of a gang. It writes its steps into the folder of its run."""

import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist

from hetero_airflow.runtime import checkpoint, current_lease


def main():
    folder, torchrun_dies, count = pathlib.Path(sys.argv[1]), sys.argv[2] == "torchrun", int(sys.argv[3])
    folder.mkdir(exist_ok=True, parents=True)
    torch.set_num_threads(1)
    dist.init_process_group(current_lease().torch_backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    steps = []
    for step in checkpoint.steps(count, every=1, state={"model": model}):
        done = torch.ones(1)
        dist.all_reduce(done)
        with torch.no_grad():
            model.weight += done
        steps.append(step)
        time.sleep(0 if (folder / "hurry").exists() else 0.2)
        if step == 3 and rank == size - 1 and torchrun_dies and not (folder / "died").exists():
            checkpoint.wait()
            (folder / "died").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()  # this rank ends with torchrun; on a slow host it could take more steps before that
    if rank == 0:
        result = {"size": size, "steps": steps, "sum": model.weight.item(), "gang": current_lease().gang.name}
        pathlib.Path(os.environ["HETERO_AIRFLOW_RESULT"]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
