"""Where an object is, as a data URL says it: ``s3://bucket/key``, ``gs://bucket/key`` or ``az://container/key``."""

import hashlib
import re
from dataclasses import dataclass

from hetero_airflow.errors import DataError, shorten
from hetero_airflow.validation import did_you_mean

OBJECT_STORES = ("s3", "gs", "az")
"""The schemes of URLs."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", re.ASCII)
_SCHEMES = {**dict.fromkeys(("azure", "abfs", "abfss", "wasb", "wasbs"), "az"), "gcs": "gs", "s3a": "s3", "s3n": "s3"}
"""What other tools call them."""

_REMEDY = "Write s3://bucket/key, gs://bucket/key or az://container/key"


@dataclass(frozen=True, slots=True)
class DataUrl:
    """An object, or a folder of objects.

    >>> DataUrl.of("s3://models/images/cat 1.jpg")
    DataUrl(scheme='s3', bucket='models', key='images/cat 1.jpg')
    """

    scheme: str
    bucket: str
    key: str
    """As it is in the store: nothing is quoted."""

    @classmethod
    def of(cls, url: object) -> "DataUrl":
        """Read a URL.

        :raises DataError: no URL of an object store, no bucket, a user in it, or an unprintable character
        """
        if not isinstance(url, str):
            raise DataError(f"the data URL {shorten(url)}", found="no text", remedy=_REMEDY)
        scheme, has_scheme, rest = url.partition("://")
        bucket, _, key = rest.partition("/")
        problems = {
            "no scheme": not has_scheme,
            "a character that can't be printed": not url.isprintable(),
            "a file, which needs no cache": scheme == "file",
            f"the scheme {shorten(scheme)}": scheme not in OBJECT_STORES,
            "a user or password in it": "@" in bucket,
            "no name of a bucket": not _NAME.fullmatch(bucket),
        }
        for problem, is_there in problems.items():
            if is_there:
                shown = scheme if "@" in bucket else shorten(url)
                meant = _SCHEMES.get(scheme, scheme)
                hint = did_you_mean(meant, OBJECT_STORES) if has_scheme and scheme not in OBJECT_STORES else ""
                raise DataError(f"the data URL {shown}", found=problem, remedy=hint + _REMEDY)
        return cls(scheme, bucket, key)

    @property
    def url(self) -> str:
        """The URL again."""
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def is_folder(self) -> bool:
        """Whether it ends with ``/``, as the name of a bucket does."""
        return not self.key or self.key.endswith("/")


def digest_of(url: str) -> str:
    """The name of an object or folder where its URL is too long or says too much: SHA-256, 64 hexadecimal digits."""
    return hashlib.sha256(url.encode()).hexdigest()
