"""Packing: scores that look ahead at the request mix, or at the free amounts of a worker.

A `PackingMeasure` rates workers by their free capacity; `PackingScorer` makes a `PlacementScorer` of it, which the
policies `assignment` and `consolidation` use with the measure `expected_fill`.
"""
