"""ETags: an answer that the browser has already is not sent again."""

import hashlib
from collections.abc import Callable

from fastapi import Request, Response
from pydantic import BaseModel

READINGS_S = 3
"""Readings of devices reach the page at most this many seconds late. Until then, they alone do not change an answer.

The store has them when they are 0.6 s old, and until they are 6 s old if their probe takes 0.1 s."""


def conditional(request: Request, facts: tuple[object, ...], make: Callable[[], BaseModel]) -> Response:
    """The answer as JSON; 304 without a body if the browser has the answer that these facts give.

    :param facts: all that the answer depends on; their texts are compared
    :param make: makes the answer; it is called only if the browser does not have it
    """
    digest = hashlib.blake2b("\0".join(map(str, facts)).encode(), digest_size=12).hexdigest()
    etag = f'W/"{digest}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": "Cookie, Authorization"}
    if request.headers.get("If-None-Match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(make().model_dump_json(), media_type="application/json", headers=headers)
