"""The agent: beside each worker, it tells Airflow's API server what devices its host has, and that it is alive.

=================== ===============================================================================
``agent.py``        the loop: discover, tell what is new, say every few seconds that the worker is there
``lease_watch.py``  which leases have processes on the host; ends those that should have none
``link.py``         one HTTP connection to the API server, each request with a token of its own
``key_file.py``     the key that the agent made and enrolled; never leaves the host
``tokens.py``       what a request is signed with, and how the server reads it
``protocol.py``     the bodies of requests and answers, with their limits; the server reads by the same file
=================== ===============================================================================

An agent asks, the server answers: nothing on the worker's host listens. Each request carries a token of its own, which
is good for that request alone, once, for half a minute. Rejected: a shared secret, such as Airflow's ``jwt_secret``,
with which any worker could speak for any other and for every user; and a token for all requests of an hour, which
whoever reads it could use for anything meanwhile.

An agent that is silent for [hetero] worker_timeout_s while an API server was there to hear it is taken for dead with
its host: what ran there runs elsewhere from its last checkpoint, at once. In exchange the worker gets no task again
before its agent says that no process of those leases is there; the server's answers name them, and the agent ends them.
So nothing is leased twice, and nobody waits for a host that may never come back. An API server that is away costs new
placements, nothing else: all agents are silent then, and nobody is lost.

The agent sees processes by their lease files (``engines/lease_files.py``) and by the lease in their environment. So it
runs as the user of the worker, with the same folder for temporary files, in the same container, or with a process
namespace that they share. Burn-ins and the watch for NVIDIA's XIDs are the executor's,
for its own host; an agent tells ECC errors and what its probes see, as telemetry and as a device's `problem`.
"""
