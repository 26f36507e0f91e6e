"""Gang."""
