"""The cycle: one pass from expired leases to dispatched work; the same code live and simulated."""
