"""Gangs: where all members of a gang fit at the same time, on the workers with the fastest network between them.

`GangPlacer` (`placement`) places gangs; policies call it through `policies.core.gang_queue`. `members` places members
one after the other on a worker, `regions` knows hosts, racks and sites, and `idle_cluster` says what fits when nothing
is leased.
"""
