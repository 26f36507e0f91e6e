from __future__ import annotations

import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from hetero_airflow.agent.key_file import load_key, make_key
from hetero_airflow.agent.tokens import public_key_hex
from hetero_airflow.errors import IdentityError


def test_a_key_is_made_once_and_read_again(tmp_path):
    path = tmp_path / "hetero" / "key.pem"
    assert load_key(path) is None
    made = make_key(path)
    again = load_key(path)
    assert again is not None
    assert public_key_hex(again) == public_key_hex(made)
    assert [file.name for file in path.parent.iterdir()] == ["key.pem"]


def test_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "key.pem"
    make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    path.chmod(0o600)
    assert load_key(path) is not None, "an earlier version made it"
    path.chmod(0o640)
    with pytest.raises(IdentityError, match="mode 640, so others may have read it"):
        load_key(path)


def test_a_key_that_is_there_is_never_replaced(tmp_path):
    path = tmp_path / "key.pem"
    made = make_key(path)
    with pytest.raises(IdentityError, match="File exists"):
        make_key(path)
    again = load_key(path)
    assert again is not None
    assert public_key_hex(again) == public_key_hex(made)


def test_a_folder_that_can_not_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match=r"Not a directory|File exists"):
        make_key(tmp_path / "file" / "key.pem")


def test_a_key_that_is_not_ed25519_is_reported_and_not_shown(tmp_path):
    other_key = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for text, problem in ((b"rubbish", "no private key"), (other_key, "a key of another kind")):
        path = tmp_path / "key.pem"
        path.write_bytes(text)
        path.chmod(0o600)
        with pytest.raises(IdentityError, match=problem) as caught:
            load_key(path)
        assert text.decode() not in str(caught.value)
