"""Device health in Airflow's scheduler: takes sick devices out of scheduling, and tests this host's devices again.

The rules are in `hetero_airflow.health`; what drivers report comes from `hetero_airflow.discovery.health`.
"""
