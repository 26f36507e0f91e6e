"""The agent's private key on its host: made once, readable only by its owner, never sent."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from hetero_airflow.errors import IdentityError

_MODE = stat.S_IRUSR
"""A key never changes. Earlier versions made the file writable by its owner too."""

_OTHERS_MODE = stat.S_IRWXG | stat.S_IRWXO


def load_key(path: Path) -> Ed25519PrivateKey | None:
    """The key in this file; None if there is no file.

    :raises IdentityError: other users may read the file, or it holds no Ed25519 key
    """
    try:
        mode = path.stat().st_mode
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error.strerror or type(error).__name__, "Give the agent a folder of its own") from error
    if mode & _OTHERS_MODE:
        raise _unusable(
            path, f"mode {stat.S_IMODE(mode):03o}, so others may have read it", "Revoke the key and enrol a new one"
        )
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise _unusable(path, "no private key", "Delete it, revoke the worker and enrol it again") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _unusable(path, "a key of another kind", "Delete it, revoke the worker and enrol it again")
    return key


def make_key(path: Path) -> Ed25519PrivateKey:
    """A new key. It is written to the file before its first use, so that no crash can lose an enrolled key.

    :raises IdentityError: the file can't be written, or exists already
    """
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _MODE), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # fails if another agent was faster; a rename would replace its key
    except OSError as error:
        raise _unusable(path, error.strerror or type(error).__name__, "Give the agent a folder of its own") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return key


def _unusable(path: Path, found: str, remedy: str) -> IdentityError:
    return IdentityError(f"the agent's key in {path}", found=found, remedy=remedy)
