"""Commands on requests for devices: queue, explain, render, schema."""
