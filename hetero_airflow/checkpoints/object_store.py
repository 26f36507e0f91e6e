"""Checkpoints in S3 or a store that speaks its language, with boto3 (extra ``s3``).

Compare-and-swap is S3's conditional write: ``If-None-Match: *`` to create, ``If-Match: <ETag>`` to replace. Of the
compatible stores some take these headers and ignore them; then two runs could mix their checkpoints, so each endpoint
is tried before the first swap. See https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from boto3.s3.transfer import TransferConfig  # type: ignore[import-untyped]
from botocore.exceptions import (  # type: ignore[import-untyped]
    ClientError,
    FlexibleChecksumError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]

from hetero_airflow.checkpoints.checkpoint_store import StoredObject
from hetero_airflow.checkpoints.keys import OWN_SUFFIX, check_key
from hetero_airflow.checkpoints.object_client import TOTAL_ATTEMPTS, make_client, status_of, translated_errors
from hetero_airflow.checkpoints.opening import REMEDY, split_url
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import CheckpointStoreUnavailable, InvalidCheckpoint, SettingsError, shorten

TRANSFER = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=8)
CHECKSUM = "CRC32"
"""On the way only, where S3 compares it for each part; at rest the manifest's SHA-256 counts."""

ATTEMPTS = 4
"""botocore tries a request again until its head has arrived; a body that is cut off is ours to ask for again."""

CUT_OFF = (FlexibleChecksumError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError)

REMEMBERED = 2048
REMEMBERED_BYTES = 64 << 10

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
DELETE_AT_ONCE = 1000


def open_object_store(
    place: CheckpointPlace,
    credentials: Mapping[str, str] | None = None,
    attempts: int = TOTAL_ATTEMPTS,
    beside: ObjectStore | None = None,
) -> ObjectStore:
    """The store of a place whose URL is ``s3://bucket/prefix``.

    :param credentials: as boto3's environment variables would say them; None: what boto3 finds by itself
    :param attempts: of each request; who asks again later anyway makes one
    :param beside: a store of the same endpoint, credentials and attempts: its client is used, which takes megabytes
    :raises SettingsError: no name of a bucket, or an endpoint that is not allowed
    """
    parts = split_url(place.url)
    if not BUCKET.fullmatch(parts.netloc):
        raise SettingsError(f"checkpoint_url={shorten(place.url)}", found="no name of a bucket", remedy=REMEDY)
    client = beside._client if beside else make_client(place.endpoint, place.endpoints, credentials, attempts)
    return ObjectStore(client, parts.netloc, parts.path.strip("/"), min(attempts, ATTEMPTS))


class ObjectStore:
    """A `CheckpointStore` in one bucket below a prefix; for any number of threads.

    What was read is remembered with its ETag, so that reading it again moves nothing but a 304 while it is the same.
    """

    def __init__(self, client: Any, bucket: str, prefix: str, read_attempts: int = ATTEMPTS) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._read_attempts = read_attempts
        self._is_tried = False
        self._remembered: OrderedDict[str, StoredObject] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, key: str, *, at_most: int) -> StoredObject | None:
        """See `CheckpointStore.read`. One request, unless its answer is cut off."""
        at = self._at(key)
        with self._lock:
            known = self._remembered.get(at["Key"])
        with translated_errors(f"read of {shorten(key)}"):
            found = self._get(key, at, known, at_most)
        self._remember(at["Key"], found)
        if found is not None:
            _refuse_more(key, len(found.content), at_most)
        return found

    def replace(self, key: str, content: bytes, version: str | None) -> str | None:
        """See `CheckpointStore.replace`."""
        at = self._at(key)
        with translated_errors(f"write of {shorten(key)}"):
            self._try_conditions(f"{at['Key'].rpartition('/')[0]}/probe{OWN_SUFFIX}".lstrip("/"))
            return self._put_if(at, content, version)

    def put(self, key: str, source: Path) -> None:
        """See `CheckpointStore.put`; in parts of 8 MiB, each with its checksum."""
        at = self._at(key)
        with source.open("rb") as file, translated_errors(f"write of {shorten(key)}"):
            for attempt in range(1, ATTEMPTS + 1):
                file.seek(0)
                try:
                    self._client.upload_fileobj(
                        file, at["Bucket"], at["Key"], ExtraArgs={"ChecksumAlgorithm": CHECKSUM}, Config=TRANSFER
                    )
                except (ClientError, ResponseParserError) as error:
                    # The answer to its last request may have been lost; asked again, there is no upload any more.
                    if isinstance(error, ClientError) and status_of(error)[0] != 404:
                        raise
                    if self._size(at) == source.stat().st_size:
                        return
                    if attempt == ATTEMPTS:
                        raise
                else:
                    return

    def fetch(self, key: str, target: Path, *, at_most: int) -> None:
        """See `CheckpointStore.fetch`."""
        at = self._at(key)
        with translated_errors(f"fetch of {shorten(key)}"):
            size_bytes = self._size(at)
            if size_bytes is None:
                raise InvalidCheckpoint(
                    f"fetch of {shorten(key)}", found="nothing there", remedy="Look for the checkpoint that is named"
                )
            _refuse_more(key, size_bytes, at_most)
            try:
                file = target.open("xb")
            except FileExistsError as error:
                raise InvalidCheckpoint(
                    f"fetch of {shorten(key)}",
                    found="a file in its place",
                    remedy="Nothing was overwritten: use a new folder",
                ) from error
            try:
                with file:
                    self._client.download_fileobj(at["Bucket"], at["Key"], file, Config=TRANSFER)
            except BaseException:
                target.unlink()
                raise

    def sweep(self, prefix: str, is_garbage: Callable[[str, float], bool]) -> Iterator[str]:
        """See `CheckpointStore.sweep`. Ends uploads that were begun in garbage, too: they cost as objects do."""
        below = f"{self._at(prefix)['Key']}/"
        with translated_errors(f"sweep of {shorten(prefix)}"):
            objects: dict[str, list[str]] = defaultdict(list)
            uploads: dict[str, list[dict[str, str]]] = defaultdict(list)
            written: dict[str, datetime] = defaultdict(lambda: datetime.min.replace(tzinfo=UTC))
            for one in self._pages("list_objects_v2", "Contents", below):
                folder, slash, _ = one["Key"].removeprefix(below).partition("/")
                if slash:
                    objects[folder].append(one["Key"])
                    written[folder] = max(written[folder], one["LastModified"])
            for one in self._pages("list_multipart_uploads", "Uploads", below):
                folder, slash, _ = one["Key"].removeprefix(below).partition("/")
                if slash:
                    uploads[folder].append({"Key": one["Key"], "UploadId": one["UploadId"]})
                    written[folder] = max(written[folder], one["Initiated"])
            now = datetime.now(UTC)
            for folder in sorted(written):
                if is_garbage(folder, (now - written[folder]).total_seconds()):
                    for upload in uploads[folder]:
                        self._client.abort_multipart_upload(Bucket=self._bucket, **upload)
                    self._delete(prefix, objects[folder])
                    yield folder

    def _at(self, key: str) -> dict[str, str]:
        check_key(key)
        return {"Bucket": self._bucket, "Key": check_key(f"{self._prefix}/{key}") if self._prefix else key}

    def _get(self, key: str, at: dict[str, str], known: StoredObject | None, at_most: int) -> StoredObject | None:
        condition = {"IfNoneMatch": known.version} if known else {}
        for attempt in range(1, self._read_attempts + 1):
            try:
                answer = self._client.get_object(**at, **condition)
                with contextlib.closing(answer["Body"]) as body:  # entering the body itself would skip its checks
                    _refuse_more(key, answer["ContentLength"], at_most)
                    return StoredObject(body.read(), answer["ETag"])
            except ClientError as error:
                status, code = status_of(error)
                if status == 304:
                    return known
                if code == "NoSuchKey":
                    return None
                if code != "404" or attempt == self._read_attempts:  # what is missing is in the body, which was cut
                    raise
            except CUT_OFF:
                if attempt == self._read_attempts:
                    raise
        raise AssertionError  # pragma: no cover  the last attempt returned or raised

    def _remember(self, key: str, found: StoredObject | None) -> None:
        with self._lock:
            self._remembered.pop(key, None)
            if found is not None and len(found.content) <= REMEMBERED_BYTES:
                self._remembered[key] = found
                if len(self._remembered) > REMEMBERED:
                    self._remembered.popitem(last=False)

    def _put_if(self, at: dict[str, str], content: bytes, version: str | None) -> str | None:
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            answer = self._client.put_object(**at, **condition, Body=content, ChecksumAlgorithm=CHECKSUM)
        except ClientError as error:
            status, code = status_of(error)
            if status in (404, 409, 412) and code != "NoSuchBucket":
                return None
            raise
        return str(answer["ETag"])

    def _try_conditions(self, key: str) -> None:
        """See, once, that the endpoint refuses a second create, and a replacement of another version."""
        if self._is_tried:
            return
        at = {"Bucket": self._bucket, "Key": key}
        try:
            accepted = [self._put_if(at, b"", version) for version in (None, None, f'"{"0" * 32}"')]
        except ClientError as error:
            if status_of(error)[1] not in ("NotImplemented", "InvalidArgument"):
                raise
            accepted = ["", ""]
        if accepted[1:] != [None, None]:
            raise CheckpointStoreUnavailable(
                f"conditional writes at {self._client.meta.endpoint_url}",
                found="a store that does not honour If-None-Match and If-Match",
                remedy="Use a store that does, as S3 itself, or a shared folder: else two runs could mix checkpoints",
            )
        self._is_tried = True

    def _size(self, at: dict[str, str]) -> int | None:
        try:
            return int(self._client.head_object(**at)["ContentLength"])
        except ClientError as error:
            if status_of(error)[0] == 404:
                return None
            raise

    def _pages(self, operation: str, field: str, prefix: str) -> Iterator[dict[str, Any]]:
        for page in self._client.get_paginator(operation).paginate(Bucket=self._bucket, Prefix=prefix):
            yield from page.get(field, ())

    def _delete(self, prefix: str, keys: list[str]) -> None:
        for first in range(0, len(keys), DELETE_AT_ONCE):
            batch = [{"Key": key} for key in keys[first : first + DELETE_AT_ONCE]]
            answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
            for error in answer.get("Errors", ()):
                raise CheckpointStoreUnavailable(
                    f"sweep of {shorten(prefix)}",
                    found=f"{error.get('Code')} for {shorten(error.get('Key'))}",
                    remedy="Allow s3:DeleteObject there",
                )


def _refuse_more(key: str, size_bytes: int, at_most: int) -> None:
    if size_bytes > at_most:
        raise InvalidCheckpoint(
            f"at most {at_most} bytes under {shorten(key)}",
            found=f"{size_bytes} bytes",
            remedy="Another program wrote there, or the manifest lies: remove it",
        )
