"""Leases in Airflow's scheduler, from dispatch to release.

`lease_keeper` watches the leases of running tasks and returns events, and `event_handler` acts on the events.
`recovery` sends tasks back, `preemption` takes leases back, and `cluster_events` reads what a cluster reports.
"""
