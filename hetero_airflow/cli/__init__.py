"""The command line: ``airflow hetero …``."""
