"""Access of Airflow's scheduler to Airflow's database. No other folder of the executor queries Airflow's tables."""
