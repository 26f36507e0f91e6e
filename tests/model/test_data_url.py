import hashlib

import pytest

from hetero_airflow.model.data_url import DataUrl, digest_of


@pytest.mark.parametrize(
    ("url", "canonical", "is_folder"),
    [
        ("s3://lake/train/a.csv", "s3://lake/train/a.csv", False),
        ("s3://lake/train/", "s3://lake/train/", True),
        ("gs://lake", "gs://lake/", True),
    ],
)
def test_a_url_that_ends_with_a_slash_is_a_folder(url: str, canonical: str, is_folder: bool) -> None:
    read = DataUrl.of(url)
    assert (read.url, read.is_folder) == (canonical, is_folder)


def test_a_digest_is_the_same_on_every_machine() -> None:
    assert digest_of("s3://lake/ä") == hashlib.sha256("s3://lake/ä".encode()).hexdigest()
