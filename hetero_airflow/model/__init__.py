"""The data model: devices, workers, requests, leases, plans and what is known of past runs. Pure data.

Every process uses these classes. They import only pydantic and the modules on the lowest layer.
"""
