"""A bucket in moto's server of S3, for the data of Airflows that tests boot."""

import json

import boto3


def lake_settings(server: str, bucket: str) -> dict[str, str]:
    """Make the bucket; the environment with which Airflow's processes use it."""
    session = boto3.session.Session("testing", "hunter2", region_name="us-east-1")
    client = session.client("s3", endpoint_url=server)
    client.create_bucket(Bucket=bucket)
    client.close()
    extra = {"endpoint_url": server, "region_name": "us-east-1"}
    connection = {"conn_type": "aws", "login": "testing", "password": "hunter2", "extra": extra}
    return {
        "AIRFLOW__HETERO__CHECKPOINT_CONN_ID": "lake",
        "AIRFLOW_CONN_LAKE": json.dumps(connection),
        "HETERO_AIRFLOW_LAKE": f"s3://{bucket}/digits",
        "NO_PROXY": "127.0.0.1",
    }
