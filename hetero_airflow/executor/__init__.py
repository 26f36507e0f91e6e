"""Where the plugin drives Airflow: executor, coordinator, configuration, DB manager."""
