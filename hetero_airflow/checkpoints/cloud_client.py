"""The clients of obstore for Azure Blob Storage and Google Cloud Storage: endpoints, credentials, errors in our terms.

obstore (extra ``cloud``) has four habits against which this module guards:

- It follows a redirect to any host. So a proxy rule sends each host but the store's, and those that give out tokens, to
  a closed port of this host. Another port of the store's host is reached nevertheless.
- It reads the environment, whatever it is given. So each variable that could lead elsewhere is given, too, or refused.
- A request in a forked process waits for ever if the parent has made one. So it is refused there.
- Its errors quote the server's answer, which may hold a signed value. So only codes are shown.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError, InvalidPathError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore

from hetero_airflow.checkpoints.azure_connection import KIND_VARIABLE
from hetero_airflow.checkpoints.endpoints import check_endpoint, origin_of
from hetero_airflow.checkpoints.google_connection import KEY_FILE_VARIABLE, KEY_VARIABLE
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, SettingsError, shorten

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

AZURE = (".blob.core.windows.net", ".blob.core.chinacloudapi.cn", ".blob.core.usgovcloudapi.net")
GOOGLE = "https://storage.googleapis.com"
ATTEMPTS = 6
FIRST_WAIT = timedelta(seconds=1)
"""The wait before the first repetition; each later one is drawn between this and twice the one before."""

_AUTHORITIES = ("login.microsoftonline.com", "login.chinacloudapi.cn", "login.microsoftonline.us")
_TOKEN_HOSTS = (*_AUTHORITIES, "accounts.google.com", "169.254.169.254", "metadata.google.internal")
_NOBODY = "http://127.0.0.1:9"
"""A port that nobody serves."""

_AZURE_CREDENTIALS: dict[str, dict[str, str]] = {
    "sas_token": {"sas_key": "AZURE_STORAGE_SAS_TOKEN"},
    "access_key": {"account_key": "AZURE_STORAGE_ACCOUNT_KEY"},
    "client_secret": {
        "client_id": "AZURE_CLIENT_ID",
        "client_secret": "AZURE_CLIENT_SECRET",
        "tenant_id": "AZURE_TENANT_ID",
    },
    "workload_identity": {
        "client_id": "AZURE_CLIENT_ID",
        "tenant_id": "AZURE_TENANT_ID",
        "federated_token_file": "AZURE_FEDERATED_TOKEN_FILE",
    },
    "managed_identity": {"client_id": "AZURE_CLIENT_ID"},
}
"""Kind of a credential → option of obstore → environment variable."""

_IDENTITIES = ("client_secret", "workload_identity")
"""What an environment may say about the identity of a host, in the order in which Azure's tools look for it."""

_GOOGLE_RIVALS = ("GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "SERVICE_ACCOUNT")
"""What obstore would take in place of, or beside, the key that it is given."""

_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status(?: code)?:? (\d{3})")
_KIND = re.compile(r"kind: (Connect|Timeout|Request|Decode|Interrupted)\b")
_REFUSED = re.compile(rf"{_NOBODY.partition('://')[2]}\b")


def azure_client(
    place: CheckpointPlace, container: str, credentials: Mapping[str, str] | None, attempts: int = ATTEMPTS
) -> AzureStore:
    """A client for a container.

    :param credentials: by the names of environment variables; what they lack is taken from this process's environment
    :raises SettingsError: no account, or an endpoint that is neither Azure's own nor allowed
    """
    given = {**os.environ, **(credentials or {})}
    account = given.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise SettingsError(
            f"checkpoint_url={shorten(place.url)}",
            found="no storage account",
            remedy="Set checkpoint_conn_id to a connection of the type wasb, or AZURE_STORAGE_ACCOUNT_NAME",
        )
    endpoint = place.endpoint or f"https://{account}{AZURE[0]}"
    check_endpoint(endpoint, place.endpoints, AZURE)
    authority = given.get("AZURE_AUTHORITY_HOST") or f"https://{_AUTHORITIES[0]}"
    check_endpoint(authority, [*place.endpoints, *(f"https://{host}" for host in _AUTHORITIES)], ())
    kind = _kind(given)
    options: dict[str, Any] = {
        option: given[name] for option, name in _AZURE_CREDENTIALS[kind].items() if given.get(name)
    }
    with _credentials_read(endpoint):
        return AzureStore(
            container,
            account_name=account,
            endpoint=endpoint,
            credential_type=kind,
            authority_host=authority,
            use_emulator=False,
            use_fabric_endpoint=False,
            skip_signature=False,
            client_options=_client_options(endpoint),
            retry_config=_retries(attempts),
            **options,
        )


def _kind(given: Mapping[str, str]) -> str:
    """The kind of the connection's credential; without one, the first kind of which all is there."""
    kind = given.get(KIND_VARIABLE)
    if kind in _AZURE_CREDENTIALS:
        return kind
    kinds = _IDENTITIES if kind else _AZURE_CREDENTIALS
    return next((name for name in kinds if all(map(given.get, _AZURE_CREDENTIALS[name].values()))), "managed_identity")


def google_client(
    place: CheckpointPlace, bucket: str, credentials: Mapping[str, str] | None, attempts: int = ATTEMPTS
) -> GCSStore:
    """A client for a bucket.

    :param credentials: what `google_connection` found; without a key what Google's tools left on this host, else the
        identity of the host. None: from this process's environment
    :raises SettingsError: an endpoint that is neither Google's own nor allowed, a key's file that can't be read, or a
        variable that would count in place of the key
    """
    given = credentials or os.environ
    endpoint = place.endpoint or GOOGLE
    check_endpoint(endpoint, place.endpoints, (".googleapis.com",))
    key = given.get(KEY_VARIABLE) or _text_of(given.get(KEY_FILE_VARIABLE))
    for name in _GOOGLE_RIVALS if key else ():
        if os.environ.get(name):
            raise SettingsError(
                "checkpoint_conn_id",
                found=f"the variable {name} on this host, which would count in place of the connection's key",
                remedy=f"Unset {name} where tasks and the triggerer run, or give the connection no key",
            )
    options: dict[str, Any] = {"service_account_key": key} if key else {}
    with _credentials_read(endpoint):
        return GCSStore(
            bucket,
            base_url=endpoint,
            skip_signature=False,
            client_options=_client_options(endpoint),
            retry_config=_retries(attempts),
            **options,
        )


def _text_of(path: str | None) -> str | None:
    try:
        return Path(path).read_text() if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            "checkpoint_conn_id",
            found=f"a key_path that can't be read on this host ({type(error).__name__})",
            remedy="Put the file there, or use keyfile_dict",
        ) from error


@contextlib.contextmanager
def _credentials_read(endpoint: str) -> Iterator[None]:
    """Making a client sends nothing, so what fails are the credentials."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise CheckpointStoreUnavailable(
            f"to make a client for {shorten(endpoint)}",
            found=f"credentials that can't be read ({type(error).__name__})",
            remedy="Correct the connection in checkpoint_conn_id, or the variables of this host",
        ) from None  # its text may hold a secret


def _client_options(endpoint: str) -> "ClientConfig":
    """`timeout` is for a request with its answer, `read_timeout` for a pause in an answer and for sending."""
    scheme, host, _ = origin_of(endpoint)
    return {
        "allow_http": scheme == "http",
        "connect_timeout": "5s",
        "read_timeout": "2m",
        "timeout": "1h",
        "proxy_url": _NOBODY,
        "proxy_excludes": ",".join((host, *_TOKEN_HOSTS)),
    }


def _retries(attempts: int) -> "RetryConfig":
    return {
        "max_retries": attempts - 1,
        "backoff": {"init_backoff": FIRST_WAIT},
        "retry_timeout": timedelta(hours=1),  # it begins with the request, so a long download has it too
    }


_first_user: int | None = None
"""The process that made the first request; its forks can make none."""


def first_user() -> int | None:
    """The id of the process that made the first request; None before that."""
    return _first_user


@contextlib.contextmanager
def translated_errors(asked: str) -> Iterator[None]:
    """Turns obstore's and the system's errors into ours."""
    global _first_user
    _first_user = _first_user or os.getpid()
    if _first_user != os.getpid():
        raise CheckpointStoreUnavailable(
            asked,
            found="a process that was forked from one that uses the store, where requests never end",
            remedy='Start it with multiprocessing.get_context("spawn")',
        )
    try:
        yield
    except (BaseError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            found = f"{os.strerror(error.errno)} on this host"
            raise CheckpointStoreUnavailable(asked, found=found, remedy="See that the local disk has room") from error
        found, remedy = _cause(error)
        raise CheckpointStoreUnavailable(asked, found=found, remedy=remedy) from None  # its text may hold a signature


def code_of(error: Exception) -> str | None:
    """The code of a store's answer, such as ``NoSuchKey``."""
    code = _CODE.search(str(error))
    return code and code[1]


def is_cut_off(error: Exception) -> bool:
    """Whether the connection ended within the answer. obstore does not send such a request again."""
    kind = _KIND.search(str(error))
    return kind is not None and kind[1] in ("Interrupted", "Decode")


def _cause(error: Exception) -> tuple[str, str]:
    text, code = str(error), code_of(error)
    if _REFUSED.search(text):
        return "a redirect to another host, which is not followed", "Correct the endpoint in the connection"
    if isinstance(error, UnauthenticatedError) or "token request" in text:
        return "no usable credentials", "Set checkpoint_conn_id, or give the hosts an identity that may use the store"
    if isinstance(error, InvalidPathError):
        return "an object with a name that can't be read", "Remove what others have put below checkpoint_url"
    status, kind = _STATUS.search(text), _KIND.search(text)
    parts = (code, status and f"HTTP {status[1]}", kind and kind[1].lower())
    found = ", ".join(part for part in parts if part) or type(error).__name__
    if status and status[1] in ("401", "403"):
        return found, "Give the identity the rights to read, write, list and delete there"
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return found, "Make the bucket or container, or correct its name"
    return found, "See that the endpoint answers, and try again"
