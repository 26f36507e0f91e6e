import pytest

from hetero_airflow.recovery.evidence import MAX_CHAIN, MAX_TEXT, Evidence, RaisedException, chain_of, evidence_of


def chain(raise_it):
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        raise_it()
    return [(raised.type, raised.text) for raised in chain_of(caught.value)]


def test_a_chain_has_the_exception_its_cause_and_its_context():
    def fails():
        try:
            try:
                raise KeyError("a")
            except KeyError:
                raise OSError("b")  # noqa: B904
        except OSError as error:
            raise ValueError("c") from error

    assert chain(fails) == [("ValueError", "c"), ("OSError", "b"), ("KeyError", "'a'")]


def test_a_suppressed_context_is_left_out():
    def fails():
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("c") from None

    assert chain(fails) == [("ValueError", "c")]


def test_a_group_has_its_members():
    def fails():
        raise ExceptionGroup("two", [MemoryError("x"), ValueError("y")])

    assert chain(fails)[1:] == [("MemoryError", "x"), ("ValueError", "y")]


def test_a_circular_chain_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert [raised.text for raised in chain_of(first)] == ["a", "b"]


def test_a_chain_is_read_up_to_a_limit():
    error = ValueError("0")
    for number in range(1, 100):
        after = ValueError(str(number))
        after.__cause__, error = error, after
    assert len(chain_of(error)) == MAX_CHAIN


def test_an_exception_without_a_readable_text_is_named():
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError

        __repr__ = __str__

    assert chain_of(Broken())[0].text == "<Broken>"


def test_both_ends_of_a_long_text_are_kept():
    (raised,) = chain_of(ValueError("begin " + "x" * 10**6 + " end"))
    assert raised.text.startswith("begin ")
    assert raised.text.endswith(" end")
    assert len(raised.text) <= MAX_TEXT + 1


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("ModuleNotFoundError: No module named 'a'", "ModuleNotFoundError"),
        ("[rank3]: torch.OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("  indented.Error: no", None),
        ("An Error: no", None),
        ("", None),
    ],
)
def test_the_line_that_ends_a_traceback_names_the_exception(line, name):
    log = f"Traceback (most recent call last):\n  File 'a', line 1\n{line}\nbye\n"
    assert Evidence(log=log, exit_code=1).final_exception_type == name


def test_a_log_counts_only_if_no_exception_says_what_happened():
    assert list(Evidence(raised=(RaisedException("ValueError", "a"),), log="b").texts()) == [
        ("the exception", "ValueError: a")
    ]
    wrapped = Evidence(raised=(RaisedException("RuntimeError", "returned a non-zero exit code 1"),), log="b")
    assert [where for where, _ in wrapped.texts()] == ["the exception", "the log"]


def test_an_exception_may_carry_its_evidence() -> None:
    class RanksFailed(RuntimeError):
        evidence = Evidence(log="GPU is lost", exit_code=-6)

    assert evidence_of(RanksFailed("rank 1")) == Evidence(log="GPU is lost", exit_code=-6)
    assert evidence_of(ValueError("nan")) == Evidence(raised=(RaisedException("ValueError", "nan"),))
