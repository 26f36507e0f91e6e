"""Counts of what happened in the store, which outlive the rows that pruning deletes.

A counter of Prometheus may not fall, and the cost of a scrape may not grow with the history. So what happened is not
counted from the rows of leases and decisions. Each transaction adds to a few rows here, with one statement. If it
fails, or is committed again after a conflict, nothing is counted twice. All schedulers add to the same rows.

Rejected: counters in the memory of each scheduler. They start at 0 after a restart, and each scheduler would need an
address that Prometheus can reach.
"""
