"""Device health."""
