import pytest
from airflow.sdk import Connection

from hetero_airflow.checkpoints import configured as configured_module
from hetero_airflow.checkpoints.configured import (
    CheckpointOptions,
    checkpoint_options,
    checkpoint_place,
    store_credentials,
    store_fields,
)
from hetero_airflow.checkpoints.place import CheckpointPlace, checkpoint_path
from hetero_airflow.errors import SettingsError


@pytest.fixture
def configured(monkeypatch):
    def _configured(**options):
        for name, value in options.items():
            monkeypatch.setenv(f"AIRFLOW__HETERO__{name.upper()}", value)
        return checkpoint_options()

    return _configured


@pytest.fixture
def connection(monkeypatch):
    def _connection(**fields):
        uri = Connection(conn_id="models", conn_type="aws", **fields).as_json()
        monkeypatch.setenv("AIRFLOW_CONN_MODELS", uri)

    return _connection


def test_checkpoints_lie_in_the_home_of_airflow_by_default(configured, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "a home"))
    assert configured() == CheckpointOptions(f"file://{tmp_path}/a%20home/checkpoints", is_default=True)


def test_the_options_are_taken_as_they_are_written(configured):
    options = configured(
        checkpoint_url="s3://models/team-a/",
        checkpoint_conn_id="models",
        checkpoint_endpoints="https://minio.example:9000, http://127.0.0.1:5000,",
    )
    assert options == CheckpointOptions(
        "s3://models/team-a", "models", ("https://minio.example:9000", "http://127.0.0.1:5000")
    )


def test_a_local_run_reads_data_with_the_connection_and_writes_checkpoints_into_a_folder_of_its_own(
    configured, monkeypatch
):
    monkeypatch.setattr(configured_module, "is_local_run", lambda: True)
    monkeypatch.setattr(configured_module, "local_checkpoint_url", lambda: "file:///local_runs")
    options = configured(
        checkpoint_url="s3://models", checkpoint_conn_id="models", checkpoint_endpoints="http://127.0.0.1:5000"
    )
    assert options == CheckpointOptions("file:///local_runs", "models", ("http://127.0.0.1:5000",))


def test_a_local_run_needs_no_connection(configured, monkeypatch, caplog):
    monkeypatch.setattr(configured_module, "is_local_run", lambda: True)
    assert store_credentials(configured(checkpoint_conn_id="nobody")) == {}
    assert "There is no connection" in caplog.text


@pytest.mark.parametrize("url", ["/srv/models", "s3://key:secret@models", "s3://models?x=1", "file:///a/../b"])
def test_a_url_that_cant_be_read_is_refused_without_its_password(configured, url):
    with pytest.raises(SettingsError, match="checkpoint_url") as caught:
        configured(checkpoint_url=url)
    assert "secret" not in str(caught.value)


def test_a_connection_becomes_what_boto3_reads(connection):
    connection(
        login="key",
        password="secret",
        extra='{"region_name": "eu-central-1", "endpoint_url": "https://minio.example", "aws_session_token": "token"}',
    )
    assert store_credentials(CheckpointOptions("s3://models", "models")) == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL_S3": "https://minio.example",
    }


def test_options_that_the_connection_lacks_are_left_to_boto3(connection):
    connection()
    assert store_credentials(CheckpointOptions("s3://models", "models")) == {}
    assert store_credentials(CheckpointOptions("s3://models", "")) == {}


def test_a_connection_that_cant_be_read_is_refused(connection):
    connection(extra="[1]", password="secret")
    with pytest.raises(SettingsError, match="no JSON object") as caught:
        store_credentials(CheckpointOptions("s3://models", "models"))
    assert "secret" not in str(caught.value)


def test_a_connection_that_is_not_there_is_named():
    with pytest.raises(SettingsError, match="checkpoint_conn_id = 'nothing'"):
        store_credentials(CheckpointOptions("s3://models", "nothing"))


def test_a_place_holds_no_secret_and_allows_the_connections_endpoint():
    options = CheckpointOptions("s3://models", "models", ("https://other.example",))
    credentials = {"AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL_S3": "https://minio.example"}
    place = checkpoint_place("d", "t", "r", 3, epoch=1, token=7, options=options, credentials=credentials)
    assert place == CheckpointPlace(
        url="s3://models",
        path=checkpoint_path("d", "t", "r", 3),
        epoch=1,
        token=7,
        endpoint="https://minio.example",
        endpoints=("https://other.example", "https://minio.example"),
    )
    assert "secret" not in place.model_dump_json()


@pytest.mark.parametrize(
    ("url", "conn_type", "wanted"),
    [
        ("gs://models", "aws", "google_cloud_platform"),
        ("az://models", "google_cloud_platform", "wasb"),
        ("s3://models", "wasb", "aws"),
    ],
)
def test_a_connection_to_another_store_is_refused(monkeypatch, url, conn_type, wanted):
    monkeypatch.setenv("AIRFLOW_CONN_MODELS", Connection(conn_id="models", conn_type=conn_type, login="a").as_json())
    with pytest.raises(SettingsError, match=f"{conn_type}.*Use a connection of the type {wanted}"):
        store_credentials(CheckpointOptions(url, "models"))


def test_an_endpoint_counts_only_for_the_connections_own_store():
    credentials = {"AWS_ENDPOINT_URL_S3": "https://minio.example"}
    options = CheckpointOptions("s3://models", "models")
    assert store_fields("s3://other", options, credentials)["endpoint"] == "https://minio.example"
    for url in ("gs://other", "az://other", "file:///other"):
        assert store_fields(url, options, credentials) == {"url": url, "endpoint": None, "endpoints": ()}


def test_the_secrets_of_a_connection_are_masked(connection, monkeypatch):
    masked = []
    monkeypatch.setattr(configured_module, "mask_secret", masked.append)
    connection(extra='{"aws_secret_access_key": "hunter2", "region_name": "eu-central-1"}')
    store_credentials(CheckpointOptions("s3://models", "models"))
    assert masked == [["hunter2"]]
