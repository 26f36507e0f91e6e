"""What people read about requests and devices, for the command line and the page in Airflow's UI."""
