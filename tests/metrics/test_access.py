import pytest

from hetero_airflow.errors import SettingsError
from hetero_airflow.metrics.access import is_token, metrics_token

VARIABLE = "AIRFLOW__HETERO__METRICS_TOKEN"
TOKEN = "b5c0a6d3f1e24f7c"


def test_without_a_token_nobody_reads_the_metrics(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert metrics_token() == ""
    assert not is_token("Bearer ", metrics_token())


@pytest.mark.parametrize(
    ("text", "found"), [("secret", "found 6 characters"), (f"{TOKEN} {TOKEN}", "found a space"), (TOKEN + "ü", "ASCII")]
)
def test_a_token_that_can_be_guessed_or_not_be_sent_is_an_error_that_does_not_show_it(monkeypatch, text, found):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SettingsError, match=found) as caught:
        metrics_token()
    assert text not in str(caught.value)


@pytest.mark.parametrize(
    ("sent", "fits"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN}", True),
        (TOKEN, False),
        (f"Basic {TOKEN}", False),
        (f"Bearer {TOKEN}x", False),
        ("Bearer ü", False),
    ],
)
def test_a_scrape_shows_the_whole_token_as_a_bearer(sent, fits):
    assert is_token(sent, TOKEN) is fits
