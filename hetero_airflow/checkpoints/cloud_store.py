"""Checkpoints in Azure Blob Storage and Google Cloud Storage, with obstore (extra ``cloud``).

Compare-and-swap is ``If-None-Match: *`` and ``If-Match`` with an ETag on Azure, and the preconditions of generations on
Google. An upload that a killed process left unfinished costs nothing on Azure after a week; on Google, set the bucket's
lifecycle rule AbortIncompleteMultipartUpload.
"""

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore

from hetero_airflow.checkpoints.checkpoint_store import StoredObject, check_size, existing_file, missing_object
from hetero_airflow.checkpoints.cloud_client import (
    ATTEMPTS,
    azure_client,
    code_of,
    google_client,
    is_cut_off,
    translated_errors,
)
from hetero_airflow.checkpoints.keys import OWN_SUFFIX, check_key
from hetero_airflow.checkpoints.object_version import ObjectChanged, ObjectVersion, quoted
from hetero_airflow.checkpoints.opening import REMEDY, split_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, SettingsError, shorten

T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", re.ASCII)
_CHUNK_BYTES = 8 << 20
_MAX_PARTS = 10_000
_REFUSALS = (AlreadyExistsError, FileNotFoundError, PreconditionError)
_READINGS = 4
_NO_OBJECT = ("NoSuchKey", "BlobNotFound")
_NOT_MET = (*_NO_OBJECT, "PreconditionFailed", "BlobAlreadyExists", "ConditionNotMet")


def open_azure(
    place: CheckpointPlace,
    credentials: Mapping[str, str] | None = None,
    attempts: int = ATTEMPTS,
    share_client_of: "CloudStore | None" = None,
) -> "CloudStore":
    """The store of a place such as ``az://container/prefix``.

    :param share_client_of: a store in the same container, with the same credentials and attempts
    :raises SettingsError: no name of a container, no account, or an endpoint that is not allowed
    """
    return _opened(azure_client, "e_tag", place, credentials, attempts, share_client_of)


def open_google(
    place: CheckpointPlace,
    credentials: Mapping[str, str] | None = None,
    attempts: int = ATTEMPTS,
    share_client_of: "CloudStore | None" = None,
) -> "CloudStore":
    """The store of a place such as ``gs://bucket/prefix``.

    :param share_client_of: a store in the same bucket, with the same credentials and attempts
    :raises SettingsError: no name of a bucket, or an endpoint that is not allowed
    """
    return _opened(google_client, "version", place, credentials, attempts, share_client_of)


def _opened(
    make_client: Callable[[CheckpointPlace, str, Mapping[str, str] | None, int], AzureStore | GCSStore],
    version: Literal["e_tag", "version"],
    place: CheckpointPlace,
    credentials: Mapping[str, str] | None,
    attempts: int,
    share_client_of: "CloudStore | None",
) -> "CloudStore":
    parts = split_url(place.url)
    if not _NAME.fullmatch(parts.netloc):
        raise SettingsError(f"checkpoint_url={shorten(place.url)}", found="no name of a bucket", remedy=REMEDY)
    client = share_client_of.client if share_client_of else make_client(place, parts.netloc, credentials, attempts)
    return CloudStore(client, version, parts.path.strip("/"), min(attempts, _READINGS))


class CloudStore:
    """A `CheckpointStore` in one bucket or container below a prefix; for any number of threads of one process.

    :param version: what tells two contents of an object apart: its ETag, or Google's generation
    :param readings: how often a request is sent whose answer is cut off
    """

    def __init__(
        self, client: AzureStore | GCSStore, version: Literal["e_tag", "version"], prefix: str, readings: int
    ) -> None:
        self.client = client
        self.lists_from_any_key = isinstance(client, GCSStore)  # Azure has no such request
        self._version = version
        self._prefix = prefix
        self._readings = readings
        self._conditions_work = False

    def read(self, key: str, *, at_most: int) -> StoredObject | None:
        """See `CheckpointStore.read`."""
        path = self._at(key)
        with translated_errors(f"to read {shorten(key)}"):
            try:
                answer = self._answered(lambda: self.client.get(path))
            except FileNotFoundError as error:
                if code_of(error) not in _NO_OBJECT:
                    raise
                return None
            check_size(key, answer.meta["size"], at_most)
            return StoredObject(bytes(answer.bytes()), str(answer.meta[self._version]))

    def replace(self, key: str, content: bytes, version: str | None) -> str | None:
        """See `CheckpointStore.replace`."""
        path = self._at(key)
        with translated_errors(f"to write {shorten(key)}"):
            self._check_conditions(f"{path.rpartition('/')[0]}/probe{OWN_SUFFIX}".lstrip("/"))
            return self._put_if(path, content, version)

    def put(self, key: str, source: Path) -> None:
        """See `CheckpointStore.put`; in parts of 8 MiB, or 10,000 parts."""
        path = self._at(key)
        with translated_errors(f"to write {shorten(key)}"):
            try:
                self._upload(path, source)
            except (BaseError, FileNotFoundError):
                # The answer to its last request may be lost; the repetition then finds no upload any more.
                if self._size(path) != source.stat().st_size:
                    raise

    def upload(self, key: str, source: Path) -> ObjectVersion | None:
        """See `VersionedObjects.upload`. If the answer is lost, it fails: the old content can have the same size."""
        with translated_errors(f"to write {shorten(key)}"):
            etag = self._upload(key, source)
        return None if etag is None else ObjectVersion(key, quoted(etag), source.stat().st_size)

    def _upload(self, path: str, source: Path) -> str | None:
        """Write a file; its ETag, if the store says it."""
        with source.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            part_bytes = max(_CHUNK_BYTES, -(-size_bytes // _MAX_PARTS))

            def upload() -> str | None:
                file.seek(0)
                return self.client.put(path, file, chunk_size=part_bytes, max_concurrency=4)["e_tag"]

            return self._answered(upload)

    def fetch(self, key: str, target: Path, *, at_most: int) -> None:
        """See `CheckpointStore.fetch`."""
        path, asked = self._at(key), f"to fetch {shorten(key)}"
        with translated_errors(asked):
            try:
                answer = self._answered(lambda: self.client.get(path))
            except FileNotFoundError as error:
                if code_of(error) not in _NO_OBJECT:
                    raise
                raise missing_object(asked) from None
            check_size(key, answer.meta["size"], at_most)
            try:
                file = target.open("xb")
            except FileExistsError as error:
                raise existing_file(asked) from error
            try:
                with file:
                    for chunk in answer.stream(_CHUNK_BYTES):
                        file.write(chunk)
            except BaseException:
                target.unlink()
                raise

    def sweep(self, prefix: str, is_garbage: Callable[[str, float], bool]) -> Iterator[str]:
        """See `CheckpointStore.sweep`."""
        below = self._at(prefix)
        with translated_errors(f"to sweep {shorten(prefix)}"):
            objects: dict[str, list[str]] = defaultdict(list)
            written: dict[str, datetime] = {}
            for page in self._answered(lambda: list(self.client.list(f"{below}/"))):
                for item in page:
                    folder, slash, _ = item["path"].removeprefix(f"{below}/").partition("/")
                    if slash:
                        objects[folder].append(item["path"])
                        written[folder] = max(written.get(folder, item["last_modified"]), item["last_modified"])
            now = datetime.now(UTC)
            for folder in sorted(written):
                if is_garbage(folder, (now - written[folder]).total_seconds()):
                    self._delete(objects[folder])
                    yield folder

    def version(self, key: str) -> ObjectVersion | None:
        """See `VersionedObjects.version`."""
        with translated_errors(f"to look for {shorten(key)}"):
            try:
                meta = self.client.head(key)
            except FileNotFoundError:
                return None
            return _version(meta)

    def versions(self, folder: str, after: str = "") -> Iterator[ObjectVersion]:
        """See `VersionedObjects.versions`."""
        with translated_errors(f"to list {shorten(folder)}"):
            for attempt in range(1, self._readings + 1):
                try:
                    for page in self.client.list(f"{folder}/".lstrip("/"), offset=after or None, chunk_size=1000):
                        for meta in page:
                            after = meta["path"]
                            yield _version(meta)
                except BaseError as error:
                    if not is_cut_off(error) or attempt == self._readings:
                        raise
                else:
                    return

    def read_range(self, version: ObjectVersion, first: int, end: int) -> bytes:
        """See `VersionedObjects.read_range`."""
        options: Any = {"range": (first, end), "if_match": version.etag}
        with translated_errors(f"to read {shorten(version.key)}"):
            try:
                return bytes(self._answered(lambda: self.client.get(version.key, options=options)).bytes())
            except (PreconditionError, FileNotFoundError) as error:
                if code_of(error) not in _NOT_MET:
                    raise
                raise ObjectChanged from None

    def _size(self, path: str) -> int | None:
        with contextlib.suppress(BaseError, FileNotFoundError):
            return self.client.head(path)["size"]
        return None

    def _delete(self, paths: list[str]) -> None:
        """Delete objects; another sweeper may be first."""
        try:
            self._answered(lambda: self.client.delete(paths))
        except FileNotFoundError as error:
            if code_of(error) not in _NO_OBJECT:
                raise
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    self.client.delete(path)

    def _at(self, key: str) -> str:
        check_key(key)
        return check_key(f"{self._prefix}/{key}") if self._prefix else key

    def _put_if(self, path: str, content: bytes, version: str | None) -> str | None:
        mode: Any = "create" if version is None else {self._version: version}
        try:
            return str(self._answered(lambda: self.client.put(path, content, mode=mode))[self._version])
        except _REFUSALS as error:
            if code_of(error) not in _NOT_MET:
                raise
            return None

    def _check_conditions(self, path: str) -> None:
        """Check once that the endpoint refuses a second create, and a replacement of another version."""
        if self._conditions_work:
            return
        other = {"e_tag": '"0x0"', "version": "1"}[self._version]
        accepted = [self._put_if(path, b"", version) for version in (None, None, other)]
        if accepted[1:] != [None, None]:
            raise CheckpointStoreUnavailable(
                "conditional writes",
                found="a store that does not honour their conditions",
                remedy="Use the provider's own store; otherwise two runs could mix checkpoints",
            )
        self._conditions_work = True

    def _answered(self, request: Callable[[], T]) -> T:
        """Send a request; again, if its answer was cut off: obstore does not."""
        for _ in range(self._readings - 1):
            try:
                return request()
            except (BaseError, FileNotFoundError) as error:
                if not is_cut_off(error) and (code_of(error) or not isinstance(error, _REFUSALS)):
                    raise
        return request()


def _version(meta: Mapping[str, Any]) -> ObjectVersion:
    return ObjectVersion(meta["path"], quoted(meta["e_tag"]), meta["size"])
