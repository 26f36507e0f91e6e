"""What fits, and how well. Pure.

::

    Shape      what is equal about equal workers                        shapes.py
    Verdict    may it ever, on a worker of this shape?  (cached)        feasibility.py
    State      a shape with what is leased of it: Fit or Miss (cached)  matcher.py
    Fleet      all workers during one decision, grouped by state        fleet.py

A question is answered once for all workers that are alike. Ten thousand workers of which most
are idle or full are a few dozen states, so a decision costs states, not workers.
"""
