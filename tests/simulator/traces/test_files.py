import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.errors import TraceError
from hetero_airflow.simulator.traces import files
from hetero_airflow.simulator.traces.files import MAX_LINE_BYTES, MAX_NUMBER, Row, csv_rows, read_whole, tab_rows


def written(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(path: Path, *columns: str) -> list[dict[str, str]]:
    return [dict(row.fields) for row in csv_rows(path, columns)]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_plain_and_gzip_and_both_line_ends_read_alike(tmp_path: Path, name: str, end: str) -> None:
    path = written(tmp_path, end.join(["\ufeffid,n", 'x,"1,5"', "", "y, 2 ", ""]), name)

    assert read(path, "id", "n") == [{"id": "x", "n": "1,5"}, {"id": "y", "n": "2"}]
    assert [row.line for row in csv_rows(path, ["id"])] == [2, 4]


def test_tabs_need_no_header(tmp_path: Path) -> None:
    path = written(tmp_path, 'a "quoted\t1\nb\t2\n', "a.trace")

    assert [dict(row.fields) for row in tab_rows(path, ("word", "n"))] == [
        {"word": 'a "quoted', "n": "1"},
        {"word": "b", "n": "2"},
    ]


@pytest.mark.parametrize(
    ("content", "line", "field", "problem"),
    [
        ("", 1, "id", "lacks id, n"),
        ("id,m\nx,1\n", 1, "n", "lacks n"),
        ("id,n,n\nx,1,1\n", 1, None, "'id,n,n'"),
        ("id,n\nx,1\ny\n", 3, None, "1 in 'y'"),
        ("id,n\nx,1,2\n", 2, None, "3 in 'x,1,2'"),
        ('id,n\n"x,1\n', 2, None, "no line of CSV"),
        ("id,n\nx,1\ny,2", 3, None, "no end of line"),
        (b"id,n\nx,1\n\xff,2\n", 3, None, "not UTF-8"),
        ("id,n\n" + "x" * MAX_LINE_BYTES + ",1\n", 2, None, f"more than {MAX_LINE_BYTES} bytes"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_with_its_line(
    tmp_path: Path, content: str | bytes, line: int, field: str | None, problem: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(written(tmp_path, content), "id", "n")

    assert (caught.value.line, caught.value.field) == (line, field)
    assert problem in caught.value.found
    assert str(caught.value).startswith(f"a.csv, line {line}")
    assert len(str(caught.value)) < 600


def test_a_gzip_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{i},{i * i}\n" for i in range(5000)).encode())
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"id,n\n") + whole[: len(whole) // 2])

    with pytest.raises(TraceError, match="ends early or is damaged"):
        read(path, "id", "n")


def test_the_number_of_rows_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ROWS", 3)
    path = written(tmp_path, "id\n" + "x\n" * 4)

    with pytest.raises(TraceError, match="more than 3 jobs"):
        read(path, "id")


def test_a_whole_file_is_bounded(tmp_path: Path) -> None:
    bomb = written(tmp_path, b"0" * 10_000, "a.json.gz")

    assert len(read_whole(bomb, 10_000)) == 10_000
    with pytest.raises(TraceError, match="more than 9999 bytes"):
        read_whole(bomb, 9_999)


@pytest.mark.parametrize(
    "value",
    ["", "nan", "NaN", "inf", "-inf", "1e999", "-1", "1_000", "0x10", "٣", "1,5", "1e15.", "--1", "1 2", "9" * 400],
)
def test_what_is_no_number_within_bounds_is_refused(value: str) -> None:
    with pytest.raises(TraceError) as caught:
        Row("a.csv", 9, {"n": value}).number("n")

    assert (caught.value.line, caught.value.field) == (9, "n")
    assert len(str(caught.value)) < 250


@given(st.floats(0, MAX_NUMBER, allow_nan=False))
def test_every_number_within_bounds_is_read_as_python_wrote_it(number: float) -> None:
    assert Row("a.csv", 1, {"n": repr(number)}).number("n") == number


@given(st.text(max_size=40))
def test_no_text_makes_a_number_that_is_not_finite(text: str) -> None:
    try:
        number = Row("a.csv", 1, {"n": text}).number("n")
    except TraceError:
        return
    assert math.isfinite(number)
    assert number >= 0


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert Row("a.csv", 1, {"n": "4.0"}).integer("n") == 4
    with pytest.raises(TraceError, match="a fraction"):
        Row("a.csv", 1, {"n": "4.5"}).integer("n")


@pytest.mark.parametrize("text", ["", "   ", "a\x1b[31m", "a\x00b", "a" * 201])
def test_a_text_is_printable_and_short(text: str) -> None:
    with pytest.raises(TraceError) as caught:
        Row("a.csv", 1, {"id": text}).text("id")

    assert str(caught.value).isprintable()
