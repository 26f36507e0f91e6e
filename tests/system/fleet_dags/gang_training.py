"""A training of two ranks on two workers. Each rank writes down its steps, and the sum over all ranks."""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from fleet_notes import nap, note

from hetero_airflow.runtime import checkpoint, current_lease


def main():
    name, count, lease = sys.argv[1], int(sys.argv[2]), current_lease()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    about = {"name": name, "rank": dist.get_rank(), "worker": lease.worker, "ids": list(lease.ids)}
    note(**about, what="start", size=dist.get_world_size(), token=lease.token, gang=lease.gang.name)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    for step in checkpoint.steps(count, every=1, state={"model": model}):
        done = torch.ones(1)
        dist.all_reduce(done)
        with torch.no_grad():
            model.weight += done
        note(**about, what="step", step=step, token=lease.token)
        nap(name, 0.3)
    if about["rank"] == 0:
        pathlib.Path(os.environ["HETERO_AIRFLOW_RESULT"]).write_text(json.dumps(model.weight.item()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
