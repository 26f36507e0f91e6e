"""Recovery: what a failure was, and what happens next. Pure, so the task's process and the scheduler agree.

`evidence` → `classification` (by the table in `failure_signs`) → a `failure`, which the task state store keeps →
`decisions` (by the table in `rules`) and `adjustment` (more memory, another worker, the next alternative).
To teach it a new error message: add a row to `failure_signs.FAILURE_SIGNS`.
"""
