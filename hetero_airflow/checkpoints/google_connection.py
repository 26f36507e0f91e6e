"""What an Airflow connection of the type google_cloud_platform says about Cloud Storage, as environment variables.

The fields are those of Airflow's provider for Google, which exclude each other:
https://airflow.apache.org/docs/apache-airflow-providers-google/stable/connections/gcp.html
"""

import json
from collections.abc import Mapping
from typing import Any

from hetero_airflow.checkpoints.connection_fields import extra_of, object_in, refused

KEY_VARIABLE = "HETERO_AIRFLOW_GOOGLE_KEY"
"""The JSON text of a service account's key. Not a variable of obstore, which takes no two that it knows."""

KEY_FILE_VARIABLE = "HETERO_AIRFLOW_GOOGLE_KEY_FILE"
"""The path of such a text, on the host of the task."""

SECRETS = (KEY_VARIABLE,)
"""The variables whose values no log may show."""

_REFUSED = (
    "credential_config_file",
    "key_secret_name",
    "impersonation_chain",
    "idp_issuer_url",
    "is_anonymous",
    "quota_project_id",
)


def variables_of(connection: Any) -> Mapping[str, str]:
    """The environment variables for a connection; empty: the identity of the host.

    :raises SettingsError: a field that can't be honoured; no secret is in the text
    """
    extra = extra_of(connection)
    for name in _REFUSED:
        if extra.get(name) not in (None, "", False, "false", "False"):
            raise refused(connection, f"extra.{name}", "Use keyfile_dict or key_path, or give the hosts an identity")
    path = str(extra.get("key_path") or "")
    if not extra.get("keyfile_dict"):
        return {KEY_FILE_VARIABLE: path} if path else {}
    if path:
        raise refused(connection, "extra.keyfile_dict and extra.key_path", "Leave one of them out")
    key = object_in(connection, "extra.keyfile_dict", extra["keyfile_dict"])
    key["private_key"] = str(key.get("private_key", "")).replace("\\n", "\n")
    return {KEY_VARIABLE: json.dumps(key)}
