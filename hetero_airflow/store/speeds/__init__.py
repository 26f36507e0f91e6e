"""The speeds that tasks report: how reports add up, and the stores in memory and in Airflow's database."""
