"""The nouns: devices, workers, requests, leases, plans. Pure data; imports nothing but pydantic."""
