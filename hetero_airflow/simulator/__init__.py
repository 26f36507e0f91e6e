"""The simulator: the same cycle, store and policies as in production, driven by events instead of a clock.

::

    Workload  jobs and the workers they run on        workload.py, cluster.py, traces/, generators.py, dag_generator.py
    Simulation  the event loop                        simulation.py, engine.py
    Record    what became of each job                 record.py
    Figures   JCT, waits, makespan, utilisation       figures.py, report.py, charts.py, html.py
    Bounds    what no scheduler can beat              bounds.py, bounds_lp.py, bounds_allocation.py

Only the world is pretended. What decides is `scheduling.cycle`, the store is the in-memory one that
passes the store's contract suite, and a policy can't tell that its snapshot is not a real one.
"""
