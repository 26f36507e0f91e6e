"""Devices that DRA drivers publish as ResourceSlices, and the claims that have them.

`resource_slices` and `allocations` read single objects, `pools` combines them into the devices of nodes; all three are
pure. `dra_view` keeps the objects of one cluster up to date in threads.
"""
