"""Conditions of a request as conditions on node labels, for pods and their node affinity. Pure.

`node_conditions` is the entry; to add a vendor, write a function there and add it to its table.
"""
