"""Gangs: where all members of a gang fit at the same time, on the workers with the fastest network between them.

`placement` places gangs, and says what fits when nothing is leased; policies call it through
`policies.core.gang_queue`. `regions` knows hosts, racks and sites.
"""
