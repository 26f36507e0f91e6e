"""Answers questions about the queue, from a snapshot and by the policy itself: nothing here changes anything.

When a request starts (`start_estimate`), with which change it would start now (`what_if`), and how many more workers
would help (`wanted_workers`). It runs in the CLI, in the API server and, for metrics, in the scheduler.
"""
