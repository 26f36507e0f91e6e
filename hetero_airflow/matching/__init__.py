"""Matching: what fits where, and how well. Pure functions that policies, the store's checks and the simulator use.

::

    Shape             a class of equal workers                                     shapes.py
    Feasibility       can a request ever run on a worker of this shape?  (cached)  feasibility.py
    OccupancyState    a shape with its leased amounts: Fit or Rejection  (cached)  matcher.py
    WorkerIndex       all workers during one decision, grouped by state            worker_index.py

Each question is answered once for all workers that are alike. Ten thousand workers, most of them idle or full, have a
few dozen states. So the cost of a decision depends on the number of states, not of workers.

A new condition of a request goes into `feasibility`, with its code in `model.plan.ReasonCode`. A new preference goes
into `scoring`. `gangs` places gangs; `packing` has scores that look ahead at the request mix.
"""
