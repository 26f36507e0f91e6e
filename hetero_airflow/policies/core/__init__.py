"""The algorithms that policies share. Pure.

`list_policy` is the base of most policies: it runs the `list_scheduler` over a queue. A policy gives it an order
(`queue_order`, or a rank for `ranked_policy`) and a scorer (`scored_policy` for one that depends on the snapshot). It
may also give reservations (`reservation`, `backfill`) and preemption (`preemption`, `preemption_plan`, `migration`).
"""
