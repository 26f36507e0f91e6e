"""The store: workers, requests, leases and decisions; exclusivity is a fact of the database."""
