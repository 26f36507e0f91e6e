"""The name of the host, which a scheduler that starts again may find changed."""

import os


def name():
    """What ``[core] hostname_callable`` asks."""
    return os.environ.get("CHAOS_HOST", "chaos-host")
