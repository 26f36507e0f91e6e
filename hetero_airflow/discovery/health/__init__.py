"""Device health on a worker host: the watch for XIDs, and the burn-in. The rules are in `hetero_airflow.health`.

The XID watch and each burn-in run in their own process, as probes do. To add a source of errors, write a watch here and
use it in `executor.device_health.host_health` (the scheduler's host) and `agent.error_watch` (other hosts).
"""
