"""A connection of the type aws means here what it means to Airflow's provider for Amazon."""

import json
from typing import Any

import pytest
from airflow.sdk import Connection
from botocore.exceptions import ClientError

from hetero_airflow.checkpoints import object_store
from hetero_airflow.checkpoints.aws_connection import PROFILE_VARIABLE, ROLE_VARIABLE, variables_of
from hetero_airflow.checkpoints.object_client import make_client, translated_errors
from hetero_airflow.errors import CheckpointStoreUnavailable, SettingsError

ROLE = "arn:aws:iam::123456789012:role/models"
WEB_IDENTITY = {
    "role_arn": ROLE,
    "assume_role_method": "assume_role_with_web_identity",
    "assume_role_with_web_identity_token_file": "/run/token",
}


def connection(extra: Any = None, **fields: Any) -> Connection:
    return Connection(conn_id="my models!", conn_type="aws", extra=json.dumps(extra or {}), **fields)


@pytest.mark.parametrize(
    ("extra", "variables"),
    [
        (
            {"aws_access_key_id": "k", "aws_secret_access_key": "s"},
            {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": ""},
        ),
        (
            {"session_kwargs": {"aws_access_key_id": "k"}, "profile_name": "other"},
            {"AWS_ACCESS_KEY_ID": "k", "AWS_SESSION_TOKEN": ""},
        ),
        ({"session_kwargs": '{"profile_name": "team"}'}, {PROFILE_VARIABLE: "team"}),
        ({"profile_name": "team"}, {PROFILE_VARIABLE: "team"}),
        ({"verify": "/etc/ca.pem"}, {"AWS_CA_BUNDLE": "/etc/ca.pem"}),
        ({"verify": True, "config_kwargs": {"retries": {}}}, {}),
        (
            {"endpoint_url": "https://a.example", "service_config": {"s3": {"endpoint_url": "https://b.example"}}},
            {"AWS_ENDPOINT_URL_S3": "https://b.example"},
        ),
    ],
)
def test_a_field_becomes_what_boto3_reads(extra, variables) -> None:
    assert variables_of(connection(extra)) == variables


def test_login_and_password_come_before_the_extra() -> None:
    extra = {"aws_access_key_id": "other", "aws_secret_access_key": "other"}
    found = variables_of(connection(extra, login="key", password="secret"))
    assert found == {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": ""}


def test_a_role_has_the_arguments_of_the_call() -> None:
    extra = {
        "role_arn": ROLE,
        "assume_role_kwargs": {"ExternalId": "7", "DurationSeconds": 900},
        "service_config": {"sts": {"endpoint_url": "https://sts.example"}},
    }
    assert json.loads(variables_of(connection(extra))[ROLE_VARIABLE]) == {
        "RoleArn": ROLE,
        "RoleSessionName": "Airflow_mymodels",
        "ExternalId": "7",
        "DurationSeconds": 900,
        "endpoint_url": "https://sts.example",
    }


def test_a_web_identity_has_a_tokens_file() -> None:
    assert json.loads(variables_of(connection(WEB_IDENTITY))[ROLE_VARIABLE]) == {
        "RoleArn": ROLE,
        "RoleSessionName": "Airflow_mymodels",
        "token_file": "/run/token",
    }


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({"verify": False}, "verify = false"),
        ({"role_arn": ROLE, "assume_role_method": "assume_role_with_saml"}, "assume_role_with_saml"),
        ({"role_arn": ROLE, "assume_role_method": "assume_role_with_web_identity"}, "without a token's file"),
        ({"service_config": {"s3": 1}}, "service_config.s3 that is no JSON object"),
        ({"session_kwargs": "{"}, "session_kwargs that is no JSON object"),
    ],
)
def test_what_cant_be_honoured_is_refused_by_name(extra, found) -> None:
    with pytest.raises(SettingsError, match=found) as caught:
        variables_of(connection(extra, password="hunter2"))
    assert "hunter2" not in str(caught.value)
    assert "my models!" in str(caught.value)


@pytest.fixture
def of_a_role(s3_place, s3_server):
    """Variables of a connection whose user takes a role at moto's STS."""
    extra = {
        "role_arn": ROLE,
        "region_name": "us-east-1",
        "endpoint_url": s3_server,
        "service_config": {"sts": {"endpoint_url": s3_server}},
    }
    return dict(variables_of(connection(extra, login="testing", password="hunter2")))


def test_a_role_signs_the_requests_with_keys_of_its_own(s3_place, s3_server, of_a_role) -> None:
    client = make_client(s3_server, [s3_server], of_a_role)
    signed = []
    client.meta.events.register("before-send.s3", lambda request, **_: signed.append(request.headers["Authorization"]))
    bucket = s3_place().url.split("/")[2]
    client.put_object(Bucket=bucket, Key="a", Body=b"1")
    assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"
    assert all(b"Credential=ASIA" in header for header in signed), "temporary keys begin with ASIA"
    assert len(signed) == 2


def clients_of(variables, monkeypatch, server):
    """The client of a triggerer, and that of a task, on a host whose environment has another identity."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "host")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hunter2")
    yield make_client(server, [server], variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield make_client(server, [server])


def test_a_role_is_taken_by_tasks_and_triggers(s3_server, of_a_role, monkeypatch) -> None:
    for client in clients_of(of_a_role, monkeypatch, s3_server):
        assert client._request_signer._credentials.method == "assume-role"
        assert client._request_signer._credentials.access_key.startswith("ASIA")


def test_a_web_identity_needs_no_key(s3_credentials, s3_server, monkeypatch, tmp_path) -> None:
    (tmp_path / "token").write_text("hunter2")
    token_file = {"assume_role_with_web_identity_token_file": str(tmp_path / "token")}
    sts = {"service_config": {"sts": {"endpoint_url": s3_server}}, "region_name": "us-east-1"}
    variables = variables_of(connection(WEB_IDENTITY | token_file | sts))
    for client in clients_of(variables, monkeypatch, s3_server):
        assert client._request_signer._credentials.access_key.startswith("ASIA")
    (tmp_path / "token").unlink()
    with pytest.raises(CheckpointStoreUnavailable, match="TokenRetrievalError"), translated_errors("to read"):
        _ = make_client(s3_server, [s3_server], variables)._request_signer._credentials.access_key


def test_a_profile_comes_before_the_keys_of_the_host(s3_credentials, s3_server, monkeypatch, tmp_path) -> None:
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = theirs\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for client in clients_of(variables_of(connection({"profile_name": "team"})), monkeypatch, s3_server):
        assert client._request_signer._credentials.access_key == "theirs"


def test_a_key_is_not_used_with_the_token_of_the_host(s3_credentials, s3_server, monkeypatch) -> None:
    for client in clients_of(variables_of(connection(login="key", password="s")), monkeypatch, s3_server):
        found = client._request_signer._credentials
        assert (found.access_key, found.secret_key, found.token or None) == ("key", "s", None)


def test_a_trigger_uses_the_connections_certificates(s3_credentials, s3_server, monkeypatch) -> None:
    for client in clients_of(variables_of(connection({"verify": "/etc/team.pem"})), monkeypatch, s3_server):
        assert client._endpoint.http_session._verify == "/etc/team.pem"


def test_a_role_that_the_user_may_not_take_is_named() -> None:
    refusal = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    with pytest.raises(CheckpointStoreUnavailable, match="sts:AssumeRole"), translated_errors("to read"):
        raise ClientError(refusal, "AssumeRole")  # moto refuses nobody


def test_an_argument_that_sts_does_not_have_makes_the_store_unusable(s3_place, of_a_role) -> None:
    of_a_role[ROLE_VARIABLE] = of_a_role[ROLE_VARIABLE].replace("RoleSessionName", "NoSuchArgument")
    with pytest.raises(CheckpointStoreUnavailable, match="ParamValidationError"):
        object_store.open_object_store(s3_place(), of_a_role).read("a", at_most=1)


def test_the_role_is_asked_for_only_at_an_allowed_endpoint(s3_place, s3_server, of_a_role, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    role = json.loads(of_a_role[ROLE_VARIABLE])
    del role["endpoint_url"]
    with pytest.raises(SettingsError, match="127"):
        object_store.open_object_store(s3_place(), {**of_a_role, ROLE_VARIABLE: json.dumps(role)}).read("a", at_most=1)
