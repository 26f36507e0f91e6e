"""Leases in Airflow's scheduler, from dispatch to release.

`lease_keeper` watches the leases of running tasks and returns `lease_events`, and `event_handler` acts on them.
`lease_use` tells whether a task may start under a lease that it has already.
`recovery` sends tasks back, `preemption` takes leases back, and `cluster_events` reads what a cluster reports.
"""
