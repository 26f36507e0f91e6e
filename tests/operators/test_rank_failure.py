import pytest

from hetero_airflow.operators.rank_group import MAX_LINE, MAX_TAIL, _LineBuffer, failure_of_ranks
from hetero_airflow.recovery.classification import classify
from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.runtime.rank_process import RankExit

CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4"


class AGroup:
    """What is known of ranks that have failed."""

    def __init__(self, *raised, exit_codes=None, tail=""):
        self._ends = [
            RankExit(rank=rank, restart=0, at_s=number, raised=((kind, text),))
            for number, (rank, kind, text) in enumerate(raised)
        ]
        self._codes = exit_codes or {}
        self._tail = tail

    def ends(self):
        return self._ends

    def exit_codes(self):
        return self._codes

    def tail(self, rank):
        return f"{self._tail} of {rank}"


@pytest.mark.parametrize(
    ("group", "rank", "failure_class"),
    [
        (AGroup((1, "KeyError", "'label'"), (0, "RuntimeError", CLOSED)), 1, FailureClass.CODE_ERROR),
        (AGroup((0, "RuntimeError", CLOSED), (1, "ValueError", "nan")), 1, FailureClass.UNKNOWN),
        (AGroup((0, "RuntimeError", CLOSED), exit_codes={0: 1, 1: -9}), 1, FailureClass.LOST_WORKER),
        (AGroup((0, "RuntimeError", CLOSED), exit_codes={0: 1, 1: -15}), 0, FailureClass.NETWORK),
        (AGroup((1, "torch.OutOfMemoryError", "CUDA out of memory")), 1, FailureClass.DEVICE_MEMORY),
        (AGroup(tail="GPU is lost", exit_codes={0: -6, 1: -6}), 0, FailureClass.HARDWARE),
        (AGroup(tail="ModuleNotFoundError: No module named 'torch'\n"), None, FailureClass.USER_ERROR),
    ],
    ids=["mistake", "mistake-seen-late", "killed", "network", "memory", "aborted", "torchrun"],
)
def test_the_rank_that_failed_first_counts_and_not_those_that_lost_it(group, rank, failure_class):
    error = failure_of_ranks(group, 1, ["train.py"], 2, None)
    assert (error.rank, classify(error.evidence).failure_class) == (rank, failure_class)
    assert str(error).endswith(f"of {rank}")


def test_ranks_that_the_kernel_killed_for_memory_ran_out_of_it():
    error = failure_of_ranks(AGroup(exit_codes={0: -9}), 1, ["train.py"], 2, 1)
    assert classify(error.evidence).failure_class is FailureClass.HOST_MEMORY


class Log(list):
    def info(self, text, *values):
        self.append(text % values)


def test_pieces_become_lines_and_an_endless_one_is_broken():
    log = Log()
    lines = _LineBuffer("rank 3", log)
    for piece in (b"on", b"e\ntwo\r\n", b"10%\r20%\r", b"\n\n", b"x" * (MAX_LINE + 1), b"\nlast"):
        lines.feed(piece)
    lines.close()
    assert log == [f"[rank 3] {text}" for text in ("one", "two", "10%", "20%", "x" * MAX_LINE, "x", "last")]


def test_no_more_than_the_last_lines_are_kept_in_memory():
    lines = _LineBuffer("rank 0", Log())
    for number in range(10_000):
        lines.feed(b"%099d\n" % number)
    assert MAX_TAIL - 200 < len(lines.tail()) < MAX_TAIL * 1.02
    assert lines.tail().endswith("9999")
