"""Checkpoints in S3 or an S3-compatible store, with boto3 (extra ``s3``).

Compare-and-swap is S3's conditional write: ``If-None-Match: *`` to create, ``If-Match: <ETag>`` to replace. Some
compatible stores accept these headers and ignore them. Two runs could then mix their checkpoints, so each endpoint is
checked before the first swap. See https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

import contextlib
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from boto3.s3.transfer import TransferConfig  # type: ignore[import-untyped]
from botocore.exceptions import (  # type: ignore[import-untyped]
    ClientError,
    FlexibleChecksumError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
from urllib3.exceptions import ProtocolError

from hetero_airflow.checkpoints.checkpoint_store import StoredObject, check_size, existing_file, missing_object
from hetero_airflow.checkpoints.keys import OWN_SUFFIX, check_key
from hetero_airflow.checkpoints.object_client import TOTAL_ATTEMPTS, make_client, status_of, translated_errors
from hetero_airflow.checkpoints.object_version import ObjectChanged, ObjectVersion
from hetero_airflow.checkpoints.opening import REMEDY, split_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, SettingsError, shorten

TRANSFER = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=8)
ATTEMPTS = 4
"""botocore retries a request only until the head of its answer has arrived. A cut-off body is requested again here."""

CUT_OFF = (FlexibleChecksumError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError, ProtocolError)
"""ProtocolError: botocore 1.43.96 passes on what urllib3 raises while an answer is read, 1.44.5 does not."""

_MARK = "hetero-airflow-writer"

MAX_CACHED = 2048
MAX_CACHED_BYTES = 64 << 10

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
DELETE_AT_ONCE = 1000


def open_object_store(
    place: CheckpointPlace,
    credentials: Mapping[str, str] | None = None,
    attempts: int = TOTAL_ATTEMPTS,
    share_client_of: "ObjectStore | None" = None,
) -> "ObjectStore":
    """The store of a place whose URL is ``s3://bucket/prefix``.

    :param credentials: by the names of boto3's environment variables; None: what boto3 finds by itself
    :param attempts: of each request; a caller that asks again later anyway makes only one
    :param share_client_of: a store with the same endpoint, credentials and attempts; a client takes megabytes
    :raises SettingsError: no name of a bucket, or an endpoint that is not allowed
    """
    parts = split_url(place.url)
    if not BUCKET.fullmatch(parts.netloc):
        raise SettingsError(f"checkpoint_url={shorten(place.url)}", found="no name of a bucket", remedy=REMEDY)
    client = (
        share_client_of._client
        if share_client_of
        else make_client(place.endpoint, place.endpoints, credentials, attempts)
    )
    return ObjectStore(client, parts.netloc, parts.path.strip("/"), min(attempts, ATTEMPTS))


class ObjectStore:
    """A `CheckpointStore` in one bucket below a prefix; for any number of threads.

    It caches small objects with their ETags, so reading an unchanged object again transfers only a 304.
    """

    lists_from_any_key = True

    def __init__(self, client: Any, bucket: str, prefix: str, read_attempts: int = ATTEMPTS) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._read_attempts = read_attempts
        self._conditions_work = False
        self._cache: OrderedDict[str, StoredObject] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, key: str, *, at_most: int) -> StoredObject | None:
        """See `CheckpointStore.read`. One request, unless its answer is cut off."""
        at = self._at(key)
        with self._lock:
            cached = self._cache.get(at["Key"])
        with translated_errors(f"to read {shorten(key)}"):
            stored = self._get(key, at, cached, at_most)
        self._put_in_cache(at["Key"], stored)
        if stored is not None:
            check_size(key, len(stored.content), at_most)
        return stored

    def replace(self, key: str, content: bytes, version: str | None) -> str | None:
        """See `CheckpointStore.replace`."""
        at = self._at(key)
        with translated_errors(f"to write {shorten(key)}"):
            self._check_conditions(f"{at['Key'].rpartition('/')[0]}/probe{OWN_SUFFIX}".lstrip("/"))
            return self._put_if(at, content, version)

    def put(self, key: str, source: Path) -> None:
        """See `CheckpointStore.put`; in parts of 8 MiB, each with its checksum (see `object_client`)."""
        at = self._at(key)
        with translated_errors(f"to write {shorten(key)}"):
            self._upload(at, source, {}, lambda: self._size(at) == source.stat().st_size)

    def _upload(self, at: dict[str, str], source: Path, extra: dict[str, Any], is_there: Callable[[], bool]) -> None:
        """Write a file.

        :param is_there: whether its content is there, although the answer to the last request is lost
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with source.open("rb") as file:  # s3transfer may close it
                    self._client.upload_fileobj(file, at["Bucket"], at["Key"], ExtraArgs=extra, Config=TRANSFER)
            except (ClientError, ResponseParserError) as error:
                # If the answer to its last request was lost, botocore's retry finds no upload any more.
                status, code = status_of(error) if isinstance(error, ClientError) else (404, "")
                if status != 404 or code == "NoSuchBucket":
                    raise
                if is_there():
                    return
                if attempt == ATTEMPTS:
                    raise
            else:
                return

    def fetch(self, key: str, target: Path, *, at_most: int) -> None:
        """See `CheckpointStore.fetch`."""
        at = self._at(key)
        with translated_errors(f"to fetch {shorten(key)}"):
            size_bytes = self._size(at)
            if size_bytes is None:
                raise missing_object(f"to fetch {shorten(key)}")
            check_size(key, size_bytes, at_most)
            try:
                file = target.open("xb")
            except FileExistsError as error:
                raise existing_file(f"to fetch {shorten(key)}") from error
            try:
                with file:
                    self._client.download_fileobj(at["Bucket"], at["Key"], file, Config=TRANSFER)
            except BaseException:
                target.unlink()
                raise

    def sweep(self, prefix: str, is_garbage: Callable[[str, float], bool]) -> Iterator[str]:
        """See `CheckpointStore.sweep`. Also ends unfinished uploads in garbage: they cost as much as objects."""
        below = f"{self._at(prefix)['Key']}/"
        with translated_errors(f"to sweep {shorten(prefix)}"):
            objects: dict[str, list[str]] = defaultdict(list)
            uploads: dict[str, list[dict[str, str]]] = defaultdict(list)
            written: dict[str, datetime] = defaultdict(lambda: datetime.min.replace(tzinfo=UTC))
            for folder, item in self._listed("list_objects_v2", "Contents", below):
                objects[folder].append(item["Key"])
                written[folder] = max(written[folder], item["LastModified"])
            for folder, item in self._listed("list_multipart_uploads", "Uploads", below):
                uploads[folder].append({"Key": item["Key"], "UploadId": item["UploadId"]})
                written[folder] = max(written[folder], item["Initiated"])
            now = datetime.now(UTC)
            for folder in sorted(written):
                if is_garbage(folder, (now - written[folder]).total_seconds()):
                    for upload in uploads[folder]:
                        self._client.abort_multipart_upload(Bucket=self._bucket, **upload)
                    self._delete(prefix, objects[folder])
                    yield folder

    def version(self, key: str) -> ObjectVersion | None:
        """See `VersionedObjects.version`."""
        with translated_errors(f"to look for {shorten(key)}"):
            try:
                answer = self._client.head_object(Bucket=self._bucket, Key=key)
            except ClientError as error:
                if status_of(error)[0] == 404:
                    return None
                raise
            return ObjectVersion(key, answer["ETag"], answer["ContentLength"])

    def versions(self, folder: str, after: str = "") -> Iterator[ObjectVersion]:
        """See `VersionedObjects.versions`; 1000 with a request."""
        asked = {"Bucket": self._bucket, "Prefix": f"{folder}/".lstrip("/")} | ({"StartAfter": after} if after else {})
        with translated_errors(f"to list {shorten(folder)}"):
            for page in self._client.get_paginator("list_objects_v2").paginate(**asked):
                for item in page.get("Contents", ()):
                    yield ObjectVersion(item["Key"], item["ETag"], item["Size"])

    def read_range(self, version: ObjectVersion, first: int, end: int) -> bytes:
        """See `VersionedObjects.read_range`. botocore compares the checksum of a whole object that has one."""
        at = {"Bucket": self._bucket, "Key": version.key, "IfMatch": version.etag}
        if (first, end) != (0, version.size_bytes):
            at["Range"] = f"bytes={first}-{end - 1}"
        with translated_errors(f"to read {shorten(version.key)}"):
            for attempt in range(1, self._read_attempts + 1):
                try:
                    with contextlib.closing(self._client.get_object(**at)["Body"]) as body:
                        return bytes(body.read())
                except ClientError as error:
                    status, code = status_of(error)
                    if status == 412 or code == "NoSuchKey":
                        raise ObjectChanged from None
                    raise
                except CUT_OFF:
                    if attempt == self._read_attempts:
                        raise
        raise AssertionError  # pragma: no cover  the last attempt returned or raised

    def upload(self, key: str, source: Path) -> ObjectVersion | None:
        """See `VersionedObjects.upload`. A mark in the object's metadata tells it from that of another writer."""
        at, mark = {"Bucket": self._bucket, "Key": key}, uuid4().hex

        def own() -> ObjectVersion | None:
            answer = self._client.head_object(**at)
            is_own = answer["Metadata"].get(_MARK) == mark
            return ObjectVersion(key, answer["ETag"], answer["ContentLength"]) if is_own else None

        with translated_errors(f"to write {shorten(key)}"):
            self._upload(at, source, {"Metadata": {_MARK: mark}}, lambda: own() is not None)
            return own()

    def _at(self, key: str) -> dict[str, str]:
        check_key(key)
        return {"Bucket": self._bucket, "Key": check_key(f"{self._prefix}/{key}") if self._prefix else key}

    def _get(self, key: str, at: dict[str, str], cached: StoredObject | None, at_most: int) -> StoredObject | None:
        condition = {"IfNoneMatch": cached.version} if cached else {}
        for attempt in range(1, self._read_attempts + 1):
            try:
                answer = self._client.get_object(**at, **condition)
                with contextlib.closing(answer["Body"]) as body:  # "with body" would skip its checks
                    check_size(key, answer["ContentLength"], at_most)
                    return StoredObject(body.read(), answer["ETag"])
            except ClientError as error:
                status, code = status_of(error)
                if status == 304:
                    return cached
                if code == "NoSuchKey":
                    return None
                if code != "404" or attempt == self._read_attempts:  # 404 alone: the body with the code was cut off
                    raise
            except CUT_OFF:
                if attempt == self._read_attempts:
                    raise
        raise AssertionError  # pragma: no cover  the last attempt returned or raised

    def _put_in_cache(self, key: str, stored: StoredObject | None) -> None:
        with self._lock:
            self._cache.pop(key, None)
            if stored is not None and len(stored.content) <= MAX_CACHED_BYTES:
                self._cache[key] = stored
                if len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)

    def _put_if(self, at: dict[str, str], content: bytes, version: str | None) -> str | None:
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            answer = self._client.put_object(**at, **condition, Body=content)
        except ClientError as error:
            status, code = status_of(error)
            if status in (404, 409, 412) and code != "NoSuchBucket":
                return None
            raise
        return str(answer["ETag"])

    def _check_conditions(self, key: str) -> None:
        """Check once that the endpoint refuses a second create, and a replacement of another version."""
        if self._conditions_work:
            return
        at = {"Bucket": self._bucket, "Key": key}
        try:
            accepted = [self._put_if(at, b"", version) for version in (None, None, f'"{"0" * 32}"')]
        except ClientError as error:
            if status_of(error)[1] not in ("NotImplemented", "InvalidArgument"):
                raise
            self._client.put_object(**at, Body=b"")  # raises if the store refuses more than the conditions
            accepted = ["", ""]
        if accepted[1:] != [None, None]:
            raise CheckpointStoreUnavailable(
                f"conditional writes at {self._client.meta.endpoint_url}",
                found="a store that does not honour If-None-Match and If-Match",
                remedy="Use S3, another store that does, or a shared folder; otherwise two runs could mix checkpoints",
            )
        self._conditions_work = True

    def _size(self, at: dict[str, str]) -> int | None:
        try:
            return int(self._client.head_object(**at)["ContentLength"])
        except ClientError as error:
            if status_of(error)[0] == 404:
                return None
            raise

    def _listed(self, operation: str, field: str, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(folder directly below the prefix, item) of each listed item in such a folder."""
        for page in self._client.get_paginator(operation).paginate(Bucket=self._bucket, Prefix=prefix):
            for item in page.get(field, ()):
                folder, slash, _ = item["Key"].removeprefix(prefix).partition("/")
                if slash:
                    yield folder, item

    def _delete(self, prefix: str, keys: list[str]) -> None:
        for first in range(0, len(keys), DELETE_AT_ONCE):
            batch = [{"Key": key} for key in keys[first : first + DELETE_AT_ONCE]]
            answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
            for error in answer.get("Errors", ()):
                raise CheckpointStoreUnavailable(
                    f"to sweep {shorten(prefix)}",
                    found=f"{error.get('Code')} for {shorten(error.get('Key'))}",
                    remedy="Allow s3:DeleteObject there",
                )
