"""What Airflow's scheduler asks of Airflow's API server. It never waits for an answer."""
