"""Commands on requests for devices: queue, explain, usage, render, and those that change the queue."""
