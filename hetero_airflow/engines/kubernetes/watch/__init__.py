"""Watches a cluster, in threads of the scheduler's process: nodes become workers, pods become lease states.

`informer` keeps one list of the API up to date; `cluster_view` combines the lists of one cluster. The other modules
are pure and read single objects.
"""
