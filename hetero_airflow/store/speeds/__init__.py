"""The speeds that tasks report: the port, how reports add up, and the stores in memory and in Airflow's database."""
