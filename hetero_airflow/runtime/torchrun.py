"""torchrun that ends with its task, and reports the exit codes of its ranks.

It takes torchrun's arguments: ``python -m hetero_airflow.runtime.torchrun --standalone --nproc-per-node=2 train.py``.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hetero_airflow.contract.notice import replace_file
from hetero_airflow.runtime.rank_process import PARENT_VARIABLE, RANKS_VARIABLE, die_with_parent

EXIT_CODES = "exit-codes.json"
"""Rank → exit code, for the ranks that failed when torchrun gave up; negative for a signal."""


def main(argv: Sequence[str]) -> int:
    """Run torchrun; return the exit code."""
    die_with_parent()
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    from hetero_airflow.runtime.gang.rendezvous import register

    register()
    try:
        run(parse_args(list(argv)))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        replace_file(Path(os.environ[RANKS_VARIABLE]) / EXIT_CODES, json.dumps(codes).encode())
        print(error, file=sys.stderr)
        return 1
    except SignalException as error:  # torchrun has stopped its ranks
        return 128 + int(error.sigval)
    return 0


def read_exit_codes(folder: Path) -> dict[int, int]:
    """The exit codes of failed ranks; none if torchrun did not give up, or was killed."""
    try:
        return {int(rank): int(code) for rank, code in json.loads((folder / EXIT_CODES).read_bytes()).items()}
    except FileNotFoundError:
        return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
