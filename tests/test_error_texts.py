"""All error texts of the package in one list, for an editor: `pytest -s tests/test_error_texts.py` prints it."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from hetero_airflow.errors import HeteroError

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [ROOT / "hetero_airflow", ROOT / "operators", ROOT / "sensors"]


class ErrorText(NamedTuple):
    """The parts of an error where the source writes it. A value that it puts in is shown as …"""

    place: str
    asked: str | None
    found: str | None
    remedy: str | None

    def __str__(self) -> str:
        error = HeteroError(self.asked or "…", found=self.found or "…", remedy=self.remedy or "…")
        return f"{self.place}: {error}"


def error_texts() -> list[ErrorText]:
    texts: list[ErrorText] = []
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            place = str(path.relative_to(ROOT))
            texts += [text for node in ast.walk(ast.parse(path.read_text())) if (text := error_text(place, node))]
    return texts


def error_text(place: str, node: ast.AST) -> ErrorText | None:
    """The text of a call with the arguments of `HeteroError`; None for any other node."""
    if not isinstance(node, ast.Call):
        return None
    arguments = {keyword.arg: keyword.value for keyword in node.keywords}
    if not {"found", "remedy"} <= arguments.keys():
        return None
    name = ast.unparse(node.func).rpartition(".")[2]
    asked = literal(node.args[0]) if node.args else None
    if name == "RequestError":
        asked = f"{asked or '…'}={literal(node.args[1]) or '…'}"
    return ErrorText(f"{place}:{node.lineno}", asked, literal(arguments["found"]), literal(arguments["remedy"]))


def literal(node: ast.expr) -> str | None:
    """The text of a string in the source; None for any other value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


TEXTS = error_texts()
RULES = {
    "asked is a thing, or an action that begins with 'to'": ("asked", r"(?!that |for |can't |could not |found )."),
    "found continues 'found ...'": ("found", r"(?!found |it |its |is |was |not )."),
    "found has no full stop": ("found", r".*[^.;:\s]$"),
    "remedy is a sentence that begins with a capital letter, code or a value": ("remedy", r"[A-Z`…]"),
}


def test_all_texts_are_printed() -> None:
    print("\n".join(map(str, TEXTS)))
    assert len(TEXTS) > 250


@pytest.mark.parametrize("rule", RULES)
def test_each_text_follows_the_rule(rule: str) -> None:
    part, pattern = RULES[rule]
    texts = [(text, getattr(text, part)) for text in TEXTS]
    assert [str(text) for text, words in texts if words and not re.match(pattern, words, re.DOTALL)] == []


def test_no_text_of_pydantic_is_shown() -> None:
    """Pydantic's texts name its own types; `hetero_airflow.validation.first_problem` has ours."""
    places = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in PACKAGES
        for path in package.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"""\[["']msg["']\]|error_count\(\)""", line)
    ]
    assert places == []
