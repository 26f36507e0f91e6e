"""The scheduling cycle, from expired leases to dispatched work, as it runs in the scheduler and in the simulator.

`cycle` is the place to start. `reaper`, `unresponsive_schedulers`, `validation`, `ownership` and `dispatching` are its
steps. `advice` answers questions about the queue, and `learning` estimates how long tasks take.
"""
