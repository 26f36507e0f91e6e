"""Learns from finished runs and reported steps how long tasks take on each device class, in Airflow's scheduler.

`learner` reads the history of runs and adds up what each DAG has used, `speed_fit` estimates speeds and amounts of
work from the lengths of runs, `class_speeds` and `progress_fit` from the steps that tasks report.
"""
