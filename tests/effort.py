"""How much a test tries: little in ``make test``, more in ``make system``, which runs such tests again."""

import os
from typing import TypeVar

import pytest

Amount = TypeVar("Amount")

IS_LONG = bool(os.environ.get("LONG_TESTS"))

long = pytest.mark.long
"""Marks a test that has a long form. Tests with Hypothesis have one without this mark."""


def effort(short: Amount, long: Amount) -> Amount:
    """How many examples, seeds or rows a test takes in this run, or which ones."""
    return long if IS_LONG else short
