"""Recovery: what a failure was, and what happens next. Pure, so the task's process and the scheduler agree.

`evidence` → `classification` → a `failure`, which the task state store keeps → `decisions` (by the table in `rules`)
and `adjustment` (more memory, another worker, the next alternative).
To recognise a new error message: add a row to `classification.FAILURE_SIGNS`.
"""
