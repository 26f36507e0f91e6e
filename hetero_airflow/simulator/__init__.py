"""Simulates a workload on a cluster, with the cycle, store and policies of production and events instead of a clock.

::

    Workload    jobs, and the workers on which they run   workload.py, cluster.py, traces/
    Simulation  the event loop                            simulation.py, simulated_engine.py
    Record      how each job went                         record.py
    Reports     JCT, waits, makespan, utilisation         reports/
    Rehearsal   a DAG run simulated before it starts      rehearsal.py

Only the world is simulated. `scheduling.cycle` decides, the store is the in-memory one that passes the port's
contract suite, and a policy can't tell that its snapshot is not a real one. It runs in `airflow hetero simulate` and
`airflow hetero plan`. To add a trace, see `traces`.
"""
