"""The token that a scrape shows. Prometheus can't log in to Airflow, and Airflow's own tokens expire."""

import hmac

from hetero_airflow.contract.airflow_options import options
from hetero_airflow.errors import SettingsError
from hetero_airflow.settings import SECTION, default

MIN_TOKEN = 16
"""Characters. A shorter one can be guessed."""


def metrics_token() -> str:
    """``[hetero] metrics_token``; empty if no scrape is allowed.

    :raises SettingsError: the token is too short, or has a character that an HTTP header can't carry
    """
    text = str(options().get(SECTION, "metrics_token", fallback=default("metrics_token"))).strip()
    asked = f"[{SECTION}] metrics_token"
    if text and len(text) < MIN_TOKEN:
        found = f"{len(text)} characters"
    elif not text.isascii() or any(character.isspace() for character in text):
        found = "a space or a character outside of ASCII"
    else:
        return text
    raise SettingsError(
        asked, found=found, remedy=f"Use {MIN_TOKEN} or more letters and digits: `openssl rand -hex 32`"
    )


def is_token(sent: str, token: str) -> bool:
    """Whether a scrape sent the token. The time for the answer says nothing about the token.

    >>> is_token("Bearer abc", "abc"), is_token("Bearer ", ""), is_token("", "")
    (True, False, False)
    """
    scheme, _, value = sent.partition(" ")
    is_equal = hmac.compare_digest(value.strip().encode(), token.encode())
    return bool(token) and scheme.lower() == "bearer" and is_equal
