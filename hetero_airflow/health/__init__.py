"""Device health: the rules that take a device out of scheduling after errors and let it back in. Pure.

`error_classes` rates each error (for NVIDIA, each XID). `transitions` has the state machine, the error rates and the
events that change the store's record. The I/O is elsewhere: `hetero_airflow.discovery.health` reads errors and runs
burn-ins on a worker host, `hetero_airflow.executor.device_health` applies these rules in the scheduler.
To add an error: add it to the tables in `error_classes`. To change when a device is taken out: see `ERROR_RATES` and
`QUARANTINE_TIMES` in `transitions`.
"""
