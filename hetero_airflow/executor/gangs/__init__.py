"""Gangs in Airflow's scheduler: mapped task instances that are placed all together or not at all."""
