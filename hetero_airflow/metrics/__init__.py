"""What Prometheus reads: the table of metrics, and their values from the store."""
