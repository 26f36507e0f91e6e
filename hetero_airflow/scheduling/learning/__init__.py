"""Learns from finished runs how long tasks take on each device class. It runs in Airflow's scheduler.

`learner` reads the history of runs and adds up what each DAG has used, `speed_fit` estimates speeds and amounts of
work.
"""
