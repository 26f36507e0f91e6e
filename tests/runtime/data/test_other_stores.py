"""The cache with the stores of Google (a stub) and Azure (Azurite)."""

import pytest

from hetero_airflow.checkpoints.opening import open_store
from hetero_airflow.errors import DataError
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data.bucket import PART_BYTES
from tests.checkpoints.conftest import az_place, azure_server, cloud_credentials, google_key, google_server, gs_place

__all__ = ["az_place", "azure_server", "cloud_credentials", "google_key", "google_server", "gs_place"]


@pytest.fixture(params=["gs", pytest.param("az", marks=pytest.mark.system)])
def folder(request, use, tmp_path):
    """The URL of a folder, and what writes an object there."""
    place = request.getfixturevalue(f"{request.param}_place")()
    root = f"{request.param}://{place.url.split('/')[2]}"
    store = open_store(place.model_copy(update={"url": root}))
    use(own_endpoints={request.param: place.endpoint}, endpoints=[place.endpoint])

    def write(name, content):
        (tmp_path / "source").write_bytes(content)
        store.put(f"folder/{name}", tmp_path / "source")
        return f"{root}/folder/{name}"

    return f"{root}/folder", write


def test_objects_are_read_and_another_content_is_seen(folder, use):
    root, write = folder
    large = bytes(2 * PART_BYTES) + b"end"
    urls = [write("small", b"1"), write("empty", b""), write("large", large)]
    assert [data.cached(url).read_bytes() for url in urls] == [b"1", b"", large]
    assert {path.name for path in data.cached_tree(root).iterdir()} == {"small", "empty", "large"}
    write("small", b"2")
    assert data.cached(urls[0]).read_bytes() == b"1", "one content in a process"
    assert data.cached(urls[0], "always").read_bytes() == b"2"
    assert data.cached(urls[0], "never").read_bytes() == b"2"
    with pytest.raises(DataError, match="found nothing there"):
        data.cached(f"{root}/nothing")
