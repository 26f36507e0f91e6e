"""An agent's key is its owner's alone; a token is valid for one request of one worker, once, for half a minute."""

import json
import stat
from base64 import urlsafe_b64encode
from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from hetero_airflow.agent.key_file import load_key, make_key
from hetero_airflow.agent.tokens import (
    AUDIENCE,
    LIFETIME_S,
    SKEW_S,
    TokenRefused,
    claimed_worker,
    public_key_hex,
    read_public_key,
    read_token,
    request_digest,
    sign_token,
)
from hetero_airflow.errors import IdentityError
from hetero_airflow.testing import EPOCH


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


KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
INSTANCE = "0123456789abcdef" * 2
AT = EPOCH.timestamp()
CLAIMS = {
    "aud": AUDIENCE,
    "sub": "worker-a",
    "ins": INSTANCE,
    "nonce": 1,
    "req": "digest",
    "iat": AT,
    "exp": AT + LIFETIME_S,
}


def token(key=KEY, now=EPOCH, **given) -> str:
    fields = {"worker": "worker-a", "instance": INSTANCE, "nonce": 1, "request": "digest"} | given
    return sign_token(key, now=now, **fields)


def forged(**claims) -> str:
    """A token with the right key and changed claims; None removes a claim."""
    return jwt.encode({k: v for k, v in {**CLAIMS, **claims}.items() if v is not None}, KEY, algorithm="EdDSA")


def refusal(text: str, now=EPOCH) -> str:
    with pytest.raises(TokenRefused) as caught:
        read_token(text, KEY.public_key(), now)
    return caught.value.code


def test_a_token_reports_what_was_signed():
    claims = read_token(token(nonce=7), KEY.public_key(), EPOCH)
    assert claims.model_dump() == {**CLAIMS, "nonce": 7}
    assert claimed_worker(token()) == "worker-a"


def test_the_public_half_of_a_key_can_be_written_and_read():
    read_token(token(), read_public_key(public_key_hex(KEY)), EPOCH)
    with pytest.raises(IdentityError, match="no Ed25519 key"):
        read_public_key("ab")


def test_another_keys_signature_is_none():
    assert refusal(token(OTHER)) == "unknown_key"


@pytest.mark.parametrize(
    ("at_s", "is_good"),
    [(-SKEW_S - 1, False), (-SKEW_S, True), (LIFETIME_S + SKEW_S, True), (LIFETIME_S + SKEW_S + 1, False)],
)
def test_a_token_is_good_from_a_little_before_it_was_signed_until_a_little_after_it_ends(at_s, is_good):
    now = EPOCH + timedelta(seconds=at_s)
    if is_good:
        read_token(token(), KEY.public_key(), now)
    else:
        assert refusal(token(), now) == "expired"


@pytest.mark.parametrize("claims", [{"exp": AT + 3600}, {"exp": float("inf")}, {"iat": float("nan")}, {"exp": AT - 20}])
def test_no_one_signs_a_token_for_longer(claims):
    assert refusal(forged(**claims)) in ("expired", "unauthenticated")


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "airflow"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"ins": "one"},
        {"nonce": None},
        {"nonce": -1},
        {"nonce": 2**63},
        {"nonce": "1"},
        {"req": None},
        {"exp": None},
        {"role": "admin"},
    ],
)
def test_a_token_that_no_agent_signs_is_none(claims):
    assert refusal(forged(**claims)) == "unauthenticated"


def parts(header: dict, claims: dict, signature: bytes = b"") -> str:
    texts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(urlsafe_b64encode(text).decode().rstrip("=") for text in texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish",
        "a.b.c",
        "ü.b.c",
        parts({"alg": "none"}, CLAIMS),
        parts({"alg": "HS256"}, CLAIMS, b"x" * 32),
        jwt.encode(CLAIMS, "a shared secret that users are known by " * 2, algorithm="HS512"),
        parts({"alg": "EdDSA"}, {**CLAIMS, "sub": ["worker-a"]}, b"x" * 64),
        parts({"alg": "EdDSA"}, {**CLAIMS, "sub": {"a": 1}}, b"x" * 64),
        parts({"alg": "EdDSA"}, {**CLAIMS, "sub": "w" * 3000}, b"x" * 64),
        parts({"alg": "EdDSA"}, {**CLAIMS, "aud": "other"}, b"x" * 64),
        "[" * 5000,
    ],
)
def test_a_text_that_is_no_agents_token_names_no_worker(text):
    with pytest.raises(TokenRefused) as caught:
        claimed_worker(text)
    assert caught.value.code == "unauthenticated"


def test_a_request_is_another_with_another_path_method_or_body():
    digests = {
        request_digest("PUT", "/a", b""),
        request_digest("POST", "/a", b""),
        request_digest("PUT", "/b", b""),
        request_digest("PUT", "/a", b"x"),
    }
    assert len(digests) == 4
