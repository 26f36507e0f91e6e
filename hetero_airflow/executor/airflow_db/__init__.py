"""Airflow db."""
