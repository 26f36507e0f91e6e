"""Linear programs, solved by HiGHS (https://highs.dev, MIT licence)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Solution:
    """An optimal solution."""

    value: float
    columns: Floats
    """The value of each variable."""
    prices: Floats
    """By how much the value changes if a row's limit is one more; at most 0 for `at_most` in a minimum."""


def minimise(
    cost: Floats, entries: tuple[Numbers, Numbers, Floats], at_most: Floats, at_least: Floats | None = None
) -> Solution | None:
    """The x with the least ``cost · x``, ``x ≥ 0`` and ``at_least ≤ A x ≤ at_most``; None if there is none.

    One thread and HiGHS's own fixed seed: the same program gives the same solution.

    >>> a = np.array([0, 0]), np.array([0, 1]), np.array([1.0, 1.0])
    >>> solution = minimise(np.array([-1.0, -2.0]), a, np.array([4.0]))
    >>> solution and (solution.value, solution.columns.tolist(), solution.prices.tolist())
    (-8.0, [0.0, 4.0], [-2.0])

    :param entries: rows, columns and values of A where it is not zero, each pair once
    :param at_least: a limit for each row; None: no limit
    """
    import highspy  # the import takes 0.1 s, and only some policies need it

    rows, columns, values = entries
    order = np.lexsort((rows, columns))
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(cost), len(at_most)
    program.col_cost_ = cost
    program.col_lower_, program.col_upper_ = np.zeros(len(cost)), np.full(len(cost), highspy.kHighsInf)
    program.row_lower_ = np.full(len(at_most), -highspy.kHighsInf) if at_least is None else at_least
    program.row_upper_ = at_most
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.searchsorted(columns[order], np.arange(len(cost) + 1))
    program.a_matrix_.index_, program.a_matrix_.value_ = rows[order], values[order]
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = solver.getSolution()
    return Solution(solver.getObjectiveValue(), np.array(solution.col_value), np.array(solution.row_dual))
