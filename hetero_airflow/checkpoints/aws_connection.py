"""What an Airflow connection of the type aws says about S3, as environment variables of boto3 and two of our own.

The fields are those of Airflow's provider for Amazon, which is not needed here:
https://airflow.apache.org/docs/apache-airflow-providers-amazon/stable/connections/aws.html. Fields that say who acts
are honoured or refused, and never left out; ``config_kwargs`` and other services' settings are left out.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from hetero_airflow.checkpoints.connection_fields import extra_of, object_in, refused
from hetero_airflow.errors import shorten

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_S3"
"""boto3's variable for the endpoint of S3 alone, not of other services."""

PROFILE_VARIABLE = "HETERO_AIRFLOW_S3_PROFILE"
"""A profile of boto3's files. Keys in a host's environment would come before ``AWS_PROFILE``."""

ROLE_VARIABLE = "HETERO_AIRFLOW_S3_ROLE"
"""A JSON object: the arguments of the call that gives a role's keys, and if given STS's ``endpoint_url`` and a
web identity's ``token_file``. boto3 reads the arguments only from a file, and ``AWS_ROLE_ARN`` after a host's keys."""

SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""The variables whose values no log may show."""

_METHODS = ("assume_role", "assume_role_with_web_identity")


def variables_of(connection: Any) -> Mapping[str, str]:
    """The environment variables for a connection of any of Airflow's connection classes.

    :raises SettingsError: its extra is no JSON object, or a field that can't be honoured; no secret is in the text
    """
    extra = extra_of(connection)
    services = object_in(connection, "extra.service_config", extra.get("service_config") or {})
    s3, sts = (
        object_in(connection, f"extra.service_config.{name}", services.get(name) or {}) for name in ("s3", "sts")
    )
    if extra.get("verify") in (False, "false", "False"):
        raise refused(connection, "extra.verify = false", "Name the file of your certificates: verify=/path/ca.pem")
    keys = object_in(connection, "extra.session_kwargs", extra.get("session_kwargs") or {}) | {
        name: extra[name] for name in ("aws_access_key_id", "aws_secret_access_key") if extra.get(name)
    }
    key = connection.login or keys.get("aws_access_key_id")
    variables = {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": connection.password or keys.get("aws_secret_access_key"),
        "AWS_SESSION_TOKEN": extra.get("aws_session_token") or keys.get("aws_session_token"),
        "AWS_DEFAULT_REGION": extra.get("region_name") or keys.get("region_name"),
        PROFILE_VARIABLE: None if key else extra.get("profile_name") or keys.get("profile_name"),
        "AWS_CA_BUNDLE": extra.get("verify") if isinstance(extra.get("verify"), str) else None,
        ENDPOINT_VARIABLE: s3.get("endpoint_url") or extra.get("endpoint_url"),
        **_role(connection, extra, sts),
    }
    found = {name: str(value) for name, value in variables.items() if value}
    return {"AWS_SESSION_TOKEN": "", **found} if key else found  # a token of the host belongs to another key


def _role(connection: Any, extra: Mapping[str, Any], sts: Mapping[str, Any]) -> dict[str, str]:
    """The variables for the role that the connection's user takes; empty without one."""
    if not extra.get("role_arn"):
        return {}
    method = extra.get("assume_role_method") or _METHODS[0]
    if method not in _METHODS:
        found = f"extra.assume_role_method = {shorten(method)}"
        raise refused(connection, found, f"Use one of {', '.join(_METHODS)}, or let the hosts have the role")
    session = re.sub(r"[^\w+=,.@-]", "", f"Airflow_{connection.conn_id}", flags=re.ASCII)[:64]
    arguments = object_in(connection, "extra.assume_role_kwargs", extra.get("assume_role_kwargs") or {})
    role = {"RoleSessionName": session, **arguments, "RoleArn": extra["role_arn"]}
    if "endpoint_url" in sts:
        role["endpoint_url"] = sts["endpoint_url"]
    if method != _METHODS[0]:
        role["token_file"] = extra.get("assume_role_with_web_identity_token_file")
        if not role["token_file"]:
            found = f"extra.assume_role_method = {method} without a token's file"
            raise refused(connection, found, "Set assume_role_with_web_identity_token_file")
    return {ROLE_VARIABLE: json.dumps(role)}
