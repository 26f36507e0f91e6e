"""What placing a device costs: queued → running, device tasks and plain ones in one run of one scheduler.

``make bench-overhead``. Device tasks go through HeteroExecutor, plain ones through LocalExecutor
beside it. There are enough devices, so no task waits for one.
"""

from queueing_delays import booted, print_delays

if __name__ == "__main__":
    print_delays(booted, "LocalExecutor")
