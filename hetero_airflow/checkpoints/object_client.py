"""The S3 client of the object store: allowed endpoints, credentials, retries, and errors in our terms.

Credentials come from boto3's own chain (environment, files, the role of the host). A process that serves many tasks
passes them in when it opens a store. A place holds none. botocore's retry configuration makes all retries of requests.

botocore sends a checksum with each body, over HTTPS as a trailer (``aws-chunked``), which S3 compares. For stored data
the manifest's SHA-256 counts. Stores that refuse such bodies (Oracle's, older MinIO and Ceph, gateways) need
``AWS_REQUEST_CHECKSUM_CALCULATION=when_required``, or ``request_checksum_calculation`` in boto3's configuration file.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
from boto3.exceptions import Boto3Error  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.credentials import (  # type: ignore[import-untyped]
    AssumeRoleCredentialFetcher,
    AssumeRoleWithWebIdentityCredentialFetcher,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)
from s3transfer.exceptions import RetriesExceededError  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError

from hetero_airflow.checkpoints.aws_connection import PROFILE_VARIABLE, ROLE_VARIABLE
from hetero_airflow.checkpoints.endpoints import check_endpoint
from hetero_airflow.errors import CheckpointStoreUnavailable

TOTAL_ATTEMPTS = 6
"""With exponential, random waits of about 15 s in total: botocore's standard mode, see
https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html"""

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30

AWS = (".amazonaws.com", ".amazonaws.com.cn")

CREDENTIALS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
    "region_name": "AWS_DEFAULT_REGION",
}
NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, TokenRetrievalError)
REFUSED = {
    "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
    "AllAccessDisabled",
}  # fmt: skip


def make_client(
    endpoint: str | None,
    allowed: Collection[str],
    credentials: Mapping[str, str] | None = None,
    attempts: int = TOTAL_ATTEMPTS,
) -> Any:
    """A client for S3 itself or for an S3-compatible endpoint.

    :param credentials: by the names of boto3's environment variables
    :raises SettingsError: an endpoint, given or configured for boto3, that is neither AWS's own nor allowed
    """
    if endpoint is not None:
        check_endpoint(endpoint, allowed, AWS)
    config = Config(
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        tcp_keepalive=True,
        # A bucket in the host name needs DNS entries that most self-hosted stores don't have.
        s3={"addressing_style": "auto" if endpoint is None else "path"},
    )
    with translated_errors(f"to make a client for {endpoint or 'S3'}"):
        given = os.environ if credentials is None else credentials
        keys = {name: (credentials or {}).get(variable) or None for name, variable in CREDENTIALS.items()}
        session = boto3.session.Session(profile_name=given.get(PROFILE_VARIABLE), **keys)
        verify = given.get("AWS_CA_BUNDLE")
        if role := given.get(ROLE_VARIABLE):
            _take_role(session, json.loads(role), allowed, config, verify=verify)
        client = session.client("s3", endpoint_url=endpoint, config=config, verify=verify)
    check_endpoint(client.meta.endpoint_url, allowed, AWS)  # AWS_ENDPOINT_URL or a profile may name another endpoint
    return client


def _take_role(session: Any, role: Mapping[str, Any], allowed: Collection[str], config: Config, **options: Any) -> None:
    """Let the session's clients use a role's keys, which botocore renews before they expire.

    :param options: of STS's client, besides its configuration
    :raises NoCredentialsError: nobody is there to take the role
    """
    arguments = dict(role)
    arn, endpoint, token_file = (arguments.pop(name, None) for name in ("RoleArn", "endpoint_url", "token_file"))

    def sts(*names: Any, **keys: Any) -> Any:
        keys["config"] = config.merge(keys.get("config") or Config())
        client = session._session.create_client(*names, **keys, **options, endpoint_url=endpoint)
        check_endpoint(client.meta.endpoint_url, [*allowed, *([endpoint] if endpoint else [])], AWS)
        return client

    if token_file:
        fetcher = AssumeRoleWithWebIdentityCredentialFetcher(
            sts, partial(_token, token_file), arn, extra_args=arguments
        )
    elif own := session.get_credentials():
        fetcher = AssumeRoleCredentialFetcher(sts, own, arn, extra_args=arguments)
    else:
        raise NoCredentialsError
    # as Airflow's provider does it
    session._session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _token(path: str) -> str:
    """A web identity's token; the platform replaces the file before it expires."""
    try:
        return Path(path).read_text()
    except OSError as error:
        raise TokenRetrievalError(provider="web identity", error_msg=f"{path}: {error.strerror}") from error


def status_of(error: ClientError) -> tuple[int, str]:
    """The HTTP status and the S3 code of an error."""
    return (
        error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0),
        error.response.get("Error", {}).get("Code", ""),
    )


@contextlib.contextmanager
def translated_errors(asked: str) -> Iterator[None]:
    """Turns the errors of boto3 and the system into ours. Shows only codes, since texts may quote signed values."""
    try:
        yield
    except ClientError as error:
        status, code = status_of(error)
        raise CheckpointStoreUnavailable(
            asked, found=f"{code} (HTTP {status})", remedy=_remedy(code, error.operation_name)
        ) from error
    except NO_CREDENTIALS as error:
        raise CheckpointStoreUnavailable(
            asked,
            found=f"no usable credentials ({type(error).__name__})",
            remedy="Set checkpoint_conn_id, or give the task AWS credentials in one of boto3's usual ways",
        ) from error
    except (BotoCoreError, Boto3Error, RetriesExceededError, HTTPError) as error:
        remedy = "See that the endpoint answers and try again"
        raise CheckpointStoreUnavailable(asked, found=type(error).__name__, remedy=remedy) from error
    except OSError as error:
        found = f"{os.strerror(error.errno) if error.errno else type(error).__name__} on this host"
        remedy = "See that the local disk has room"
        raise CheckpointStoreUnavailable(asked, found=found, remedy=remedy) from error


def _remedy(code: str, operation: str) -> str:
    if operation.startswith("AssumeRole"):
        return f"Let the connection's user take the role (sts:{operation}), or correct role_arn in the connection"
    if code in REFUSED:
        return "Give its key s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload and ListBucket there"
    if code == "NoSuchBucket":
        return "Make the bucket, or correct its name"
    if code in ("NotImplemented", "501"):
        return (
            "The store lacks what this request needs. If it refuses aws-chunked bodies, set "
            "AWS_REQUEST_CHECKSUM_CALCULATION=when_required for the scheduler and the workers"
        )
    return "Try again later"
