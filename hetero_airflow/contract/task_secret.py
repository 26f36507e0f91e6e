"""A secret that the runs of a task share, on its way from the scheduler to the task's supervisor.

Celery workers and pods log the whole message of a task, but for its token. So the message has the secret encrypted with
the token. The supervisor, which has both, gives the task the secret in its environment.
"""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hetero_airflow.model.grant import GrantSigner

_NONCE = bytes(12)
"""A key encrypts one text: the token is of one task instance, and the secret of its task."""


def task_secret(signer: GrantSigner, dag_id: str, task_id: str) -> bytes:
    """The secret of a task: the same for all of its runs, and known only to who has the installation's key.

    >>> from hetero_airflow.testing.builders import a_signer
    >>> signer = a_signer()
    >>> task_secret(signer, "etl", "fit") == task_secret(signer, "etl", "fit") != task_secret(signer, "etl", "load")
    True
    """
    return hashlib.sha256(signer.seal("task", dag_id, task_id).encode()).digest()


def wrapped(secret: bytes, token: str) -> str:
    """The secret encrypted with a token, in 64 characters.

    >>> unwrapped(wrapped(bytes(32), "a token"), "a token") == bytes(32).hex(), unwrapped("AAAA", "a token")
    (True, '')
    """
    return urlsafe_b64encode(AESGCM(_key(token)).encrypt(_NONCE, secret, None)).decode()


def unwrapped(text: str, token: str) -> str:
    """The secret in hexadecimal digits; empty if the text is not one that was encrypted with this token."""
    try:
        return AESGCM(_key(token)).decrypt(_NONCE, urlsafe_b64decode(text), None).hex()
    except (InvalidTag, ValueError):
        return ""


def _key(token: str) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=b"hetero-airflow/task-secret").derive(token.encode())
