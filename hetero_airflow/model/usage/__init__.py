"""Device-time, as exact integers, and what it costs. Pure."""
