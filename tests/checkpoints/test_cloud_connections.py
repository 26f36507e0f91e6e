"""Connections of the types wasb and google_cloud_platform mean here what they mean to Airflow's providers."""

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from hetero_airflow.checkpoints import azure_connection, google_connection
from hetero_airflow.errors import SettingsError

ADDRESS = "https://models.blob.core.windows.net"
OF_ACCOUNT = {"AZURE_STORAGE_ACCOUNT_NAME": "models", "AZURE_STORAGE_ENDPOINT": ADDRESS}


def wasb(extra: Any = None, **fields: Any) -> Connection:
    return Connection(conn_id="my models", conn_type="wasb", extra=json.dumps(extra or {}), **fields)


def google(extra: Any = None) -> Connection:
    return Connection(conn_id="my models", conn_type="google_cloud_platform", extra=json.dumps(extra or {}))


@pytest.mark.parametrize(
    ("fields", "extra", "kind", "variables"),
    [
        ({"login": "models", "password": "k"}, {}, "access_key", {"AZURE_STORAGE_ACCOUNT_KEY": "k"}),
        ({"host": f"{ADDRESS}/", "password": "k"}, {}, "access_key", {"AZURE_STORAGE_ACCOUNT_KEY": "k"}),
        ({"host": ADDRESS[8:]}, {"account_key": "k"}, "access_key", {"AZURE_STORAGE_ACCOUNT_KEY": "k"}),
        (
            {"host": "an id", "login": "models", "password": "other"},
            {"shared_access_key": "k", "sas_token": "sig=other"},
            "access_key",
            {"AZURE_STORAGE_ACCOUNT_KEY": "k"},
        ),
        ({"login": "models"}, {"sas_token": "?sv=1&sig=s"}, "sas_token", {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=s"}),
        (
            {"login": "models", "password": "other"},
            {"sas_token": "sig=s", "extra__wasb__sas_token": "sig=old"},
            "sas_token",
            {"AZURE_STORAGE_SAS_TOKEN": "sig=s"},
        ),
        ({}, {"sas_token": f"{ADDRESS}/container?sig=s"}, "sas_token", {"AZURE_STORAGE_SAS_TOKEN": "sig=s"}),
        (
            {"host": ADDRESS, "login": "client", "password": "s"},
            {"tenant_id": "tenant", "client_secret_auth_config": {"authority": "login.microsoftonline.us"}},
            "client_secret",
            {
                "AZURE_TENANT_ID": "tenant",
                "AZURE_CLIENT_ID": "client",
                "AZURE_CLIENT_SECRET": "s",
                "AZURE_AUTHORITY_HOST": "https://login.microsoftonline.us",
            },
        ),
        (
            {"host": ADDRESS},
            {"extra__wasb__managed_identity_client_id": "c", "workload_identity_tenant_id": "t"},
            "workload_identity",
            {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c"},
        ),
        ({"host": ADDRESS}, {"managed_identity_client_id": "c"}, "managed_identity", {"AZURE_CLIENT_ID": "c"}),
        ({"host": ADDRESS}, {}, "identity", {}),
        (
            {"password": "other"},
            {"connection_string": "DefaultEndpointsProtocol=https;accountname=models;AccountKey=k=="},
            "access_key",
            {"AZURE_STORAGE_ACCOUNT_KEY": "k=="},
        ),
        (
            {},
            {"connection_string": f"BlobEndpoint={ADDRESS}/;SharedAccessSignature=sv=1&sig=s"},
            "sas_token",
            {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=s"},
        ),
    ],
)
def test_a_field_becomes_a_variable(fields, extra, kind, variables) -> None:
    found = azure_connection.variables_of(wasb(extra, **fields))
    assert found == OF_ACCOUNT | {azure_connection.KIND_VARIABLE: kind} | variables


def test_an_emulator_has_the_account_in_the_path() -> None:
    text = "AccountName=dev;AccountKey=k;BlobEndpoint=http://127.0.0.1:10000/dev"
    assert azure_connection.variables_of(wasb({"connection_string": text})) == {
        "AZURE_STORAGE_ACCOUNT_NAME": "dev",
        "AZURE_STORAGE_ACCOUNT_KEY": "k",
        "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:10000/dev",
        azure_connection.KIND_VARIABLE: "access_key",
    }


@pytest.mark.parametrize(
    ("fields", "extra", "found"),
    [
        ({}, {}, "no storage account"),
        ({"login": "client"}, {"tenant_id": "t", "sas_token": "s"}, "without a client and its secret"),
        ({"host": f"{ADDRESS}/?sig=hunter2"}, {}, "more than a path"),
        ({"host": "https://hunter2@models.blob.core.windows.net"}, {}, "more than a path"),
        ({}, {"connection_string": f"BlobEndpoint={ADDRESS}"}, "connection_string without a key"),
        ({"login": "a"}, {"tenant_id": "t", "client_secret_auth_config": {"proxies": {}}}, "config.proxies"),
    ],
)
def test_a_connection_to_azure_that_cant_be_honoured_is_refused(fields, extra, found) -> None:
    with pytest.raises(SettingsError, match=found) as caught:
        azure_connection.variables_of(wasb(extra, **{"password": "" if "tenant_id" in extra else "hunter2", **fields}))
    assert "hunter2" not in str(caught.value)


def test_a_key_of_google_is_handed_over_as_a_text() -> None:
    key = {"private_key": "-----BEGIN\\nhunter2", "client_email": "a@b"}
    for given in (key, json.dumps(key)):
        for name in ("keyfile_dict", "extra__google_cloud_platform__keyfile_dict"):
            found = dict(google_connection.variables_of(google({name: given})))
            assert json.loads(found.pop(google_connection.KEY_VARIABLE))["private_key"] == "-----BEGIN\nhunter2"
            assert found == {}


def test_a_file_of_google_and_the_identity_of_the_host() -> None:
    assert google_connection.variables_of(google({"key_path": "/run/key.json", "project": "p"})) == {
        google_connection.KEY_FILE_VARIABLE: "/run/key.json"
    }
    assert google_connection.variables_of(google()) == {}


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({"impersonation_chain": "a@b"}, "impersonation_chain"),
        ({"key_secret_name": "a"}, "key_secret_name"),
        ({"is_anonymous": True}, "is_anonymous"),
        ({"quota_project_id": "p"}, "quota_project_id"),
        ({"key_path": "/run/key", "keyfile_dict": {"private_key": "hunter2"}}, "keyfile_dict and extra.key_path"),
        ({"keyfile_dict": "hunter2"}, "keyfile_dict that is no JSON object"),
    ],
)
def test_what_cant_be_honoured_is_refused_by_name(extra, found) -> None:
    with pytest.raises(SettingsError, match=found) as caught:
        google_connection.variables_of(google(extra))
    assert "hunter2" not in str(caught.value)
    assert "my models" in str(caught.value)
