"""Packing: scores that look ahead at the request mix, or at the free amounts of a worker.

A `PackingMeasure` rates workers by their free capacity; `PackingScorer` makes a `PlacementScorer` of it, which the
policies `best_fit`, `expected_fill` and `consolidation` use. Write a new measure here, and a policy that uses it.
"""
