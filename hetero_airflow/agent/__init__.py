"""The agent. It runs beside each worker and reports the host's devices and its heartbeats to Airflow's API server.

The agent asks and the server answers: nothing on the worker's host listens. Each request carries its own token, which
is valid for this request only, once, and for half a minute. Rejected: a shared secret, such as Airflow's
``jwt_secret``, with which any worker could speak for any other worker and for every user; and one token for all
requests of an hour, which anyone who reads it could use for anything in that hour.

If an agent sends nothing for [hetero] worker_timeout_s while an API server was there to receive it, its host counts as
dead: the tasks run elsewhere at once, from their last checkpoints. In exchange, the worker gets no task again until its
agent reports that no process of these leases is left. The server's replies name these leases, and the agent ends their
processes. So no device is leased twice, and no task waits for a host that may never return. If the API server is away,
all agents are silent and no worker is lost; only new placements have to wait.

The agent finds processes by their lease files (`engines.host.lease_files`) and by the lease in their environment. So it
runs as the worker's user, sees the same folders (`lease_folders`), and is in the same container or in a shared process
namespace. Burn-ins are the scheduler's task, on its own host. The agent reports ECC errors and what the probes find, as
telemetry and as a device's `problem`.
"""
