"""Grants: what a scheduler signs when it hands a lease to a task, and what others verify.

A grant says that a lease with this fencing token belongs to this task, and until when its run must begin. It is signed
with Ed25519 (RFC 8032). The private key is in Airflow's database, which tasks can't read. The public key and the
signature go with the lease. Rejected: a message authentication code, since a process that verifies it could sign too.
"""

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime, timedelta

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, Field

from hetero_airflow.errors import GrantRefused, shorten

_PURPOSE = "hetero-airflow/lease/1"
"""Signed with the rest, so that no signature for another purpose is a grant."""

START_TIMEOUT_S = 60.0
"""A device task starts within this time after it was handed over, or never: its token is valid for no longer. If its
scheduler dies at once, its lease lasts about as long. Pods may take longer to start, and their cluster shows them."""

START_WINDOW = timedelta(seconds=START_TIMEOUT_S + 15)
"""The start timeout, with slack for clocks that differ: Airflow's API server allows 10 s, [api_auth] jwt_leeway."""

SKEW_S = 30
"""How much the clocks of a scheduler and of a worker may differ."""


class Grant(BaseModel):
    """A grant as its holder presents it. It counts only after `check`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease: str = Field(max_length=400)
    token: int
    """The lease's fencing token."""
    task: str = Field(max_length=800)
    """The task instance, as `checkpoints.place.checkpoint_path` writes it."""
    start_by: int
    """Unix time until which the run must begin."""
    key: str = Field(max_length=64)
    """The public key, base64url."""
    signature: str = Field(max_length=128)

    def check(self, *, token: int | None, task: str, key: str) -> None:
        """See that the grant is for this token and task.

        :param key: the installation's. Anyone can make a grant that fits its own key
        :raises GrantRefused: it is for something else, or the key did not sign it
        """
        asked = f"token {token} for {task}"
        if (self.token, self.task) != (token, task):
            raise _refused(asked, f"a grant for token {self.token} of {self.task}")
        if self.key != key:
            raise _refused(asked, "a grant that another key signed")
        try:
            Ed25519PublicKey.from_public_bytes(_decode(self.key)).verify(_decode(self.signature), self._content())
        except (InvalidSignature, ValueError):
            raise _refused(asked, "a grant whose signature does not fit its content") from None

    def check_start(self, now: datetime) -> None:
        """See that the run may still begin.

        :raises GrantRefused: it is too late
        """
        late_s = now.timestamp() - self.start_by
        if late_s > SKEW_S:
            raise GrantRefused(
                f"to begin a run of {self.task} under lease {self.lease}",
                found=f"a grant that ended {late_s:.0f} s ago",
                remedy="Do nothing: the scheduler places the task again. If this repeats, set the hosts' clocks (NTP)",
            )

    def pack(self) -> str:
        """The parts that a lease does not have itself, in one short text: some engines limit a task's size."""
        return f"{self.start_by}.{self.key}.{self.signature}"

    @classmethod
    def unpack(cls, text: str, *, lease: str, token: int, task: str) -> "Grant":
        """The grant of a lease from its packed text.

        :raises GrantRefused: the text is no grant
        """
        try:
            start_by, key, signature = text.split(".")
            return cls(lease=lease, token=token, task=task, start_by=int(start_by), key=key, signature=signature)
        except ValueError:
            raise _refused(f"token {token} for {task}", f"no grant: {shorten(text)}") from None

    def _content(self) -> bytes:
        return json.dumps([_PURPOSE, self.lease, self.token, self.task, self.start_by]).encode()


class GrantSigner:
    """Signs grants, and what a scheduler knows again as its own or as another one's of the same Airflow.

    >>> signer = GrantSigner(Ed25519PrivateKey.generate())
    >>> grant = signer.sign(lease="r1.7", token=7, task="etl/fit/r1/-1", start_by=0)
    >>> grant.check(token=7, task="etl/fit/r1/-1", key=signer.public_key)
    >>> signer.is_seal(signer.seal("pod", "a"), "pod", "a"), signer.is_seal(signer.seal("pod", "a"), "pod", "b")
    (True, False)
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = _encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        """The installation's key as grants and checkpoint stores name it, base64url."""

    def sign(self, *, lease: str, token: int, task: str, start_by: int) -> Grant:
        """The grant for a lease."""
        grant = Grant(lease=lease, token=token, task=task, start_by=start_by, key=self.public_key, signature="")
        return grant.model_copy(update={"signature": _encode(self._key.sign(grant._content()))})

    def seal(self, purpose: str, *parts: str) -> str:
        """The signature over these words.

        :param purpose: so that no signature for another purpose counts; not that of grants
        """
        return _encode(self._key.sign(json.dumps([f"hetero-airflow/{purpose}", *parts]).encode()))

    def is_seal(self, seal: str, purpose: str, *parts: str) -> bool:
        """Whether a text is the signature over these words. Ed25519 signs the same words alike each time."""
        return hmac.compare_digest(seal.encode(), self.seal(purpose, *parts).encode())


def _encode(value: bytes) -> str:
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _refused(asked: str, found: str) -> GrantRefused:
    remedy = "Leave the lease in the environment as HeteroExecutor set it, and run the task through Airflow"
    return GrantRefused(asked, found=found, remedy=remedy)
