"""The algorithms that policies share. Pure.

`list_policy` is the base of most policies: it runs the `list_scheduler` over a queue. A policy gives it an order
(`queue_order`) and a scorer (`mix_scorer` for one that looks ahead at the mix of requests). It may also give
reservations (`backfill`) and preemption (`preemption`, `preemption_plan`, `migration`).
"""
