from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.cli.output import PIPE_WIDTH, cell, clean, clean_all, console, show, show_json, table


@given(st.text())
def test_clean_text_is_printable_and_keeps_what_was_printable(text):
    cleaned = clean(text)
    assert cleaned.isprintable()
    if text.isprintable():
        assert cleaned == text


def test_clean_all_reaches_keys_and_nested_values():
    assert clean_all({"a\n": ["\x1b", {"b": ("\u202e", 1, None, True)}]}) == {
        "a\\n": ["\\x1b", {"b": ["\\u202e", 1, None, True]}]
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_markup_and_emoji_codes_stay_text_on_a_colour_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = Terminal()
    console(file).print(cell("[red]x[/red] :smile: 42 '/a/b'"))
    assert file.getvalue() == "[red]x[/red] :smile: 42 '/a/b'\n"
    file = Terminal()
    console(file).print(cell("ours", style="red"))
    assert file.getvalue() == "\x1b[31mours\x1b[0m\n"


def test_a_pipe_gets_no_colour_and_a_fixed_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    file = io.StringIO()
    made = console(file)
    made.print(cell("ours", style="red"))
    assert (made.width, file.getvalue()) == (PIPE_WIDTH, "ours\n")


def test_a_file_that_can_hold_ascii_only_gets_escapes():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console(file).print(cell("2 × gpu"))
    file.seek(0)
    assert file.read() == "2 \\xd7 gpu\n"


def test_lines_of_text_are_never_broken(render):
    assert render([cell("word " * 50)], width=20) == ("word " * 50).rstrip()


def test_a_table_breaks_long_cells_but_loses_nothing(render):
    rows = [(cell("an-id-that-is-longer-than-the-width-0123456789"), cell("short words", "GPU-0123456789-0123456789"))]
    assert render([table(("ID", "REST"), rows, whole=0)], width=40) == "\n".join(
        (
            "ID                                              REST",
            "an-id-that-is-longer-than-the-width-0123456789  short words",
            "                                                GPU-01234567",
            "                                                89-012345678",
            "                                                9",
        )
    )


def test_a_table_of_empty_headers_has_no_header(render):
    assert render([table(("", ""), [(cell("a"), cell("b"))])]) == "a  b"


def test_an_empty_table_is_its_header(render):
    assert render([table(("A", "B"), [], whole=0)]) == "A  B"


@pytest.mark.parametrize("value", [{"a": ["[red]\x1b[31m", "ä" * 200, None]}, [], 1.5])
def test_json_is_printed_whole_and_in_ascii(capsys, monkeypatch, value):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    show_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert text.isascii()
    assert "\x1b" not in text


def test_several_parts_are_printed_in_order(render):
    assert render([cell("a", "b"), cell(""), cell("c")]) == "a\nb\n\nc"
    show()
