"""The endpoints to which a client of an object store may speak."""

from collections.abc import Collection
from urllib.parse import urlsplit

from hetero_airflow.errors import SettingsError, shorten

PORTS = {"http": 80, "https": 443}


def check_endpoint(endpoint: str, allowed: Collection[str], own: tuple[str, ...]) -> None:
    """Check that an endpoint is the provider's own or an allowed one: same scheme, host and port.

    :param own: ends of the host names of the provider, which are reached with https alone

    >>> check_endpoint("https://minio.example:443/", ["https://MINIO.example"], ())

    :raises SettingsError: it is not, or has a user or password
    """
    origin = origin_of(endpoint)
    if origin in map(origin_of, allowed) or (origin[0] == "https" and origin[1].endswith(own)):
        return
    raise SettingsError(
        f"endpoint {origin[0]}://{shorten(origin[1])[1:-1]}:{origin[2]}",
        found="neither the provider's own nor an allowed one",
        remedy="Use the endpoint of the connection in checkpoint_conn_id, or add it to checkpoint_endpoints",
    )


def origin_of(endpoint: str) -> tuple[str, str, int]:
    """Scheme, host and port of an endpoint.

    :raises SettingsError: it has none, or a user
    """
    try:
        parts = urlsplit(endpoint)
        if parts.scheme in PORTS and parts.hostname and "@" not in parts.netloc:
            return parts.scheme, parts.hostname.lower(), parts.port or PORTS[parts.scheme]
    except ValueError:
        pass
    raise SettingsError(
        "endpoint of a checkpoint store",  # not shown: it may hold a password
        found="no http:// or https:// address, or one with a user",
        remedy="Write https://host:port",
    )
