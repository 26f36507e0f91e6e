from __future__ import annotations

import pytest

from hetero_airflow.matching.feasibility import version_obstacle


@pytest.mark.parametrize(
    ("installed", "specifier", "obstacle"),
    [
        ("12.4", ">=12.4", None),
        ("12.10", ">=12.4", None),
        ("12.4", ">12.4", "12.4"),
        ("2.9.0+cu128", "==2.9.0", None),
        ("24.1.rc3", ">=23", None),
        ("24.1rc3", ">=24.1", "24.1rc3"),
        ("", ">=1", "'', which is no version"),
        ("not a version", ">=1", "'not a version', which is no version"),
        (None, ">=1", "no known version"),
    ],
)
def test_a_version_suits_as_pip_says_or_is_shown(installed: str | None, specifier: str, obstacle: str | None) -> None:
    assert version_obstacle(installed, specifier) == obstacle


@pytest.mark.parametrize("hostile", ["9" * 5000, "1." * 50_000, "x" * 100_000, "\x00", "１２"])
def test_a_hostile_version_is_never_a_crash(hostile: str) -> None:
    found = version_obstacle(hostile, ">=1000000")
    assert found is not None
    assert len(found) < 100
