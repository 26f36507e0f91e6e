"""What an Airflow connection of the type wasb says about Azure Blob Storage, as environment variables.

The fields are those of Airflow's provider for Microsoft Azure, in its order:
https://airflow.apache.org/docs/apache-airflow-providers-microsoft-azure/stable/connections/wasb.html
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from hetero_airflow.checkpoints.connection_fields import extra_of, object_in, refused

ENDPOINT_VARIABLE = "AZURE_STORAGE_ENDPOINT"
"""The address of the account."""

KIND_VARIABLE = "HETERO_AIRFLOW_AZURE_CREDENTIAL"
"""The kind of the connection's credential, so that no other one in a host's environment counts."""

SECRETS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET")
"""The variables whose values no log may show."""

_SUFFIX = "core.windows.net"


def variables_of(connection: Any) -> Mapping[str, str]:
    """The environment variables for a connection.

    :raises SettingsError: no account, or a field that can't be honoured; no secret is in the text
    """
    extra = extra_of(connection)
    text = extra.get("connection_string")
    endpoint, variables = _of_text(connection, text) if text else _of_fields(connection, extra)
    parts = urlsplit(endpoint)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise refused(connection, "an address of the account with more than a path", "Put a token into sas_token")
    account = variables.pop("account", None) or _account(parts.hostname or "", parts.path.strip("/"))
    if not account:
        raise refused(connection, "no storage account", "Set the host to https://ACCOUNT.blob.core.windows.net")
    found = {"AZURE_STORAGE_ACCOUNT_NAME": account, ENDPOINT_VARIABLE: endpoint.rstrip("/"), **variables}
    return {name: str(value) for name, value in found.items() if value}


def _of_text(connection: Any, text: str) -> tuple[str, dict[str, Any]]:
    """Azure's own form: ``AccountName=…;AccountKey=…``."""
    pairs = (part.split("=", 1) for part in text.split(";") if "=" in part)
    parts = {name.strip().lower(): value for name, value in pairs}
    account, key, sas = (parts.get(name) for name in ("accountname", "accountkey", "sharedaccesssignature"))
    if not (key or sas):
        found = "extra.connection_string without a key"
        raise refused(connection, found, "Add AccountKey or SharedAccessSignature")
    scheme, suffix = parts.get("defaultendpointsprotocol", "https"), parts.get("endpointsuffix", _SUFFIX)
    endpoint = parts.get("blobendpoint") or f"{scheme}://{account}.blob.{suffix}"
    return endpoint, {"account": account} | (_key(key) if key else _sas(sas))


def _of_fields(connection: Any, extra: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    tenant, sas = extra.get("tenant_id"), str(extra.get("sas_token") or "")
    endpoint = _address(connection)
    if tenant:
        return endpoint, _client_secret(connection, tenant, extra)
    if extra.get("shared_access_key"):
        return endpoint, _key(extra["shared_access_key"])
    if sas.startswith("https:"):
        address, _, sas = sas.partition("?")
        return "/".join(address.split("/")[:3]), _sas(sas)
    if sas:
        return endpoint, _sas(sas)
    if connection.password or extra.get("account_key"):
        return endpoint, _key(connection.password or extra["account_key"])
    client_id, tenant = extra.get("managed_identity_client_id"), extra.get("workload_identity_tenant_id")
    kind = "workload_identity" if tenant else "managed_identity" if client_id else "identity"
    return endpoint, {KIND_VARIABLE: kind, "AZURE_CLIENT_ID": client_id, "AZURE_TENANT_ID": tenant}


def _key(key: Any) -> dict[str, Any]:
    return {KIND_VARIABLE: "access_key", "AZURE_STORAGE_ACCOUNT_KEY": key}


def _sas(token: Any) -> dict[str, Any]:
    return {KIND_VARIABLE: "sas_token", "AZURE_STORAGE_SAS_TOKEN": str(token).lstrip("?")}


def _client_secret(connection: Any, tenant: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    config = object_in(connection, "extra.client_secret_auth_config", extra.get("client_secret_auth_config") or {})
    if others := sorted(config.keys() - {"authority"}):
        raise refused(connection, f"extra.client_secret_auth_config.{others[0]}", "Leave it out")
    if not (connection.login and connection.password):
        found = "extra.tenant_id without a client and its secret"
        raise refused(connection, found, "Set the login to the client's id and the password to its secret")
    authority = str(config.get("authority") or "")
    return {
        KIND_VARIABLE: "client_secret",
        "AZURE_TENANT_ID": tenant,
        "AZURE_CLIENT_ID": connection.login,
        "AZURE_CLIENT_SECRET": connection.password,
        "AZURE_AUTHORITY_HOST": authority if "://" in authority or not authority else f"https://{authority}",
    }


def _address(connection: Any) -> str:
    host = connection.host or ""
    if "://" in host:
        return str(host)
    if "." in host:
        return f"https://{host}"
    account = connection.login or host
    return f"https://{account}.blob.{_SUFFIX}" if account else ""


def _account(host: str, path: str) -> str:
    """The first part of the host's name; of an emulator's address, the first part of the path."""
    return path.split("/")[0] or host.split(".")[0]
