"""What is known about leases in Airflow's scheduler, beside the life of their runs.

`lease_use` tells whether a task may start under a lease that it has already. `recovery` sends tasks back,
`cluster_events` reads what a cluster reports, and `spans` emits traces.
"""
