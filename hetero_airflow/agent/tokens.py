"""The token of one request: who asks, for what, until when. A JWT signed with Ed25519 (RFC 8037). Pure."""

import hashlib
from base64 import urlsafe_b64decode
from datetime import datetime
from typing import Any

import jwt
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from hetero_airflow.agent.protocol import RefusalCode
from hetero_airflow.errors import IdentityError, shorten

AUDIENCE = "hetero-airflow/agent"
ALGORITHM = "EdDSA"
LIFETIME_S = 30
SKEW_S = 10
"""How much the clocks of an agent and of a server may differ."""
MAX_TOKEN_CHARACTERS = 2048

_CHECKS = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "require": ["aud", "sub", "iat", "exp"]}
"""`read_token` compares the times, with the time that it gets."""


class TokenClaims(BaseModel):
    """The content of a token with a valid signature."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    aud: str
    sub: str = Field(min_length=1, max_length=256)
    """The worker's id."""
    ins: str = Field(pattern=r"^[0-9a-f]{32}$")
    """The agent's process."""
    nonce: int = Field(gt=0, lt=2**63)
    """Grows with each request of a worker. Of two requests with the same nonce only the first is accepted."""
    req: str
    """The `request_digest` of the only request that the token is for."""
    iat: float
    exp: float


class TokenRefused(IdentityError):
    """The token does not permit the request; `code` says why."""

    def __init__(self, code: RefusalCode, *, found: str, remedy: str) -> None:
        self.code = code
        super().__init__("a request of a worker's agent", found=found, remedy=remedy)


def request_digest(method: str, path: str, body: bytes) -> str:
    """Ties a token to one request. `path` is without the prefix, which a proxy may change."""
    return hashlib.sha256(f"{method} {path}\n".encode() + body).hexdigest()


def sign_token(key: Ed25519PrivateKey, *, worker: str, instance: str, nonce: int, request: str, now: datetime) -> str:
    """A token for this request, valid for `LIFETIME_S` seconds."""
    at = now.timestamp()
    claims = {"aud": AUDIENCE, "sub": worker, "ins": instance, "nonce": nonce, "req": request}
    return jwt.encode(claims | {"iat": at, "exp": at + LIFETIME_S}, key, algorithm=ALGORITHM)


def claimed_worker(token: str) -> str:
    """The worker id in a token, not verified yet: it only selects the key to verify the token with.

    :raises TokenRefused: this is no token of an agent
    """
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise _unreadable_error(f"{len(token)} characters")
    try:
        header, claims = map(_read_part, token.split(".")[:2])
    except (ValueError, RecursionError) as error:
        raise _unreadable_error(f"one that can't be read ({type(error).__name__})") from error
    worker = claims.get("sub")
    if header.get("alg") != ALGORITHM or claims.get("aud") != AUDIENCE or not isinstance(worker, str):
        raise _unreadable_error("one that no agent signed")
    return worker


def _read_part(part: str) -> dict[str, Any]:
    """One part of a token. PyJWT's function for reading a token without a key took 0.6 of a heartbeat's 2.1 ms."""
    value = from_json(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    if not isinstance(value, dict):
        raise ValueError("no object")  # noqa: TRY004  the caller catches ValueError for all unreadable tokens
    return value


def read_token(token: str, key: Ed25519PublicKey, now: datetime) -> TokenClaims:
    """The content of the token, if this key signed it and it is valid now.

    :raises TokenRefused: another key signed it, it is no token of an agent, or it is not valid at this time
    """
    try:
        claims = TokenClaims.model_validate(
            jwt.decode(token, key, algorithms=[ALGORITHM], audience=AUDIENCE, options=_CHECKS)  # type: ignore[arg-type]
        )
    except jwt.InvalidSignatureError as error:
        raise unknown_key_error() from error
    except (jwt.InvalidTokenError, ValidationError, RecursionError) as error:
        raise _unreadable_error(f"one that can't be read ({type(error).__name__})") from error
    at = now.timestamp()
    if not claims.iat - SKEW_S <= at <= claims.exp + SKEW_S or claims.exp - claims.iat > LIFETIME_S:
        raise TokenRefused(
            RefusalCode.EXPIRED,
            found=f"a token for {claims.exp - claims.iat:.0f} s that was signed {at - claims.iat:+.1f} s ago",
            remedy=f"Set the clocks of the worker's host and of the API server: they may differ by {SKEW_S} s",
        )
    return claims


def hash_secret(secret: str) -> str:
    """The stored hash of an enrolment secret. A secret has 256 random bits, so one round of SHA-256 is enough.

    >>> len(hash_secret("a"))
    64
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def read_public_key(digits: str) -> Ed25519PublicKey:
    """The key that `public_key_hex` has written.

    :raises IdentityError: the text is no key
    """
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(digits))
    except (ValueError, InvalidKey) as error:
        raise IdentityError(
            f"the key {shorten(digits)}", found="no Ed25519 key", remedy="Enrol the agent again"
        ) from error


def public_key_hex(key: Ed25519PrivateKey) -> str:
    """The public half of a key as 64 hexadecimal digits."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def unknown_key_error() -> TokenRefused:
    """The same error for a worker without a key and for a wrong signature, so that no client learns worker names."""
    return TokenRefused(
        RefusalCode.UNKNOWN_KEY,
        found="a token that no enrolled key of this worker signed",
        remedy="Enrol the agent: `airflow hetero enroll WORKER`, after `airflow hetero revoke WORKER` if it had a key",
    )


def _unreadable_error(found: str) -> TokenRefused:
    return TokenRefused(
        RefusalCode.UNAUTHENTICATED,
        found=found,
        remedy="Send a token that `airflow hetero worker` signs for each request",
    )
