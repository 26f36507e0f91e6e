"""Policies that assign requests to classes of devices, by how much each request gains on each class. Pure.

`candidates` reads from a snapshot which requests compete for which classes. `weighted_assignment` is the base of
policies that maximise a sum of weights: it uses `solver` to assign and `victims` to find what must be preempted for
that. `rounds` takes the weights from a linear program. `earliest_finish` assigns each request to the class on which it
is expected to finish first, in the order of the queue; `upward_rank` gives such orders for workflows.

The folder is not called ``assignment``, because ``policies/assignment.py`` is the policy of that name.
"""
