"""The agent: beside each worker, it tells Airflow's API server what devices its host has, and that it is alive.

=================== ===============================================================================
``agent.py``        the loop: discover, tell what is new, say every few seconds that the worker is there
``link.py``         one HTTP connection to the API server, each request with a token of its own
``key_file.py``     the key that the agent made and enrolled; never leaves the host
``tokens.py``       what a request is signed with, and how the server reads it
``protocol.py``     the bodies of requests and answers, with their limits; the server reads by the same file
=================== ===============================================================================

An agent asks, the server answers: nothing on the worker's host listens. Each request carries a token of its own, which
is good for that request alone, once, for half a minute. Rejected: a shared secret, such as Airflow's ``jwt_secret``,
with which any worker could speak for any other and for every user; and a token for all requests of an hour, which
whoever reads it could use for anything meanwhile.

A task does not depend on the agent: it runs under its lease, whose scheduler renews it. An API server or an agent that
is away costs new placements on that worker, nothing else. Burn-ins and the watch for NVIDIA's XIDs are the executor's,
for its own host; an agent tells ECC errors and what its probes see, as telemetry and as a device's `problem`.
"""
