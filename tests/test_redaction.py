"""Secrets are removed from text, and paths are not."""

from __future__ import annotations

import pytest

from gnnkit.errors import MAX_MESSAGE, UserError
from gnnkit.jobs.order import command, plain_yaml, redact_override
from gnnkit.utils.redaction import as_interpolation, redact, secret_variables

SECRET = "wJalr/XUtn+FEMI"  # with a slash, as keys of AWS have
SHOWN = [
    f"https://host/x.npz?sig={SECRET}",
    f"https://host/x?X-Amz-Signature={SECRET}&X-Amz-Expires=5",
    f"https://host/x?X-Amz-Credential={SECRET}",
    f"https://host/x?x-goog-signature={SECRET}",
    f"https://host/x?X-Amz-Security-Token={SECRET}",
    f"https://host/x?Signature={SECRET}&AWSAccessKeyId={SECRET}",
    f"https://host/x?key={SECRET}",
    f"https://host/x?a=1&token={SECRET}",
    f"https://host/x?password={SECRET}",
    f"https://me:{SECRET}@host/x",
    f"s3://AKIAIOSF:{SECRET}@bucket/folder/x.npz",
]
KEPT = [
    "https://host:9000/bucket/x@v1/y.npz",
    "s3://bucket/data@v1/x.npz",
    "/data/me@host/x.npz",
    "/data/pwd/keyboard/x.npz",
    "https://host/x?page=2&sort=up",
]
VARIABLES = [
    ("DB_PASSWORD", True),
    ("HF_TOKEN", True),
    ("AWS_SECRET_ACCESS_KEY", True),
    ("MY_API_KEY", True),
    ("MYSQL_PWD", True),
    ("PWD", False),
    ("OLDPWD", False),
    ("KEYBOARD", False),
    ("TOKENIZERS_PARALLELISM", False),
    ("SECRETARY", False),
    ("AUTHOR", False),
    ("KEY_FILE", False),
    ("SSH_AUTH_SOCK", False),
]


@pytest.mark.parametrize("url", SHOWN)
def test_no_text_shows_a_secret_of_a_url(url: str) -> None:
    texts = [
        redact(f'Invalid bucket name "{url}": see the traceback'),
        str(UserError(f"dataset.root={url}: there is no such file")),
        command([f"dataset.root={url}"]),
        redact_override(f"dataset.root='{url}'"),
        redact_override(f"dataset.root={url}/${{oc.env:REST}}"),
        plain_yaml({"dataset": {"root": url, "urls": [url]}}),
        plain_yaml([f"dataset.root={url}"]),
    ]
    assert [text for text in texts if SECRET in text or SECRET.partition("/")[2] in text] == []


@pytest.mark.parametrize(
    "text",
    [
        f"dataset.api_key={SECRET} must be a name",
        f"failed: token='{SECRET}'",
        f"Authorization: Bearer {SECRET}",
        f"{{'Authorization': 'Basic {SECRET}'}}",
    ],
)
def test_no_message_shows_the_value_of_a_secret_key(text: str) -> None:
    assert SECRET not in redact(text)


@pytest.mark.parametrize("text", [f"x={{api_key:{SECRET},a:1}}", f"x=[{{password: '{SECRET}'}}]", f"api_key={SECRET}"])
def test_no_override_shows_a_secret_inside_a_mapping(text: str) -> None:
    assert SECRET not in redact_override(f"dataset.{text}")


@pytest.mark.parametrize("url", KEPT)
def test_a_place_without_a_secret_stays_as_it_is(url: str) -> None:
    assert redact(f"dataset.root={url} is there") == f"dataset.root={url} is there"
    assert redact_override(f"dataset.root={url}") == f"dataset.root={url}"
    assert plain_yaml([url]) == f"- {url}\n" or url in plain_yaml([url])


def test_a_message_keeps_counts_and_placeholders() -> None:
    text = "num_tokens=5: give dataset.api_key=VALUE or dataset.api_key=${oc.env:MY_KEY}"
    assert redact(text) == text


@pytest.mark.parametrize(("name", "is_secret"), VARIABLES)
def test_a_variable_is_secret_by_the_words_of_its_name(name: str, is_secret: bool) -> None:
    assert (name in secret_variables({name: "abcdefgh1"})) is is_secret


@pytest.mark.parametrize("value", ["short", "/tmp/key.json", "~/.ssh/id", "./key", "../key"])
def test_a_path_and_a_short_value_are_no_secrets(value: str) -> None:
    assert secret_variables({"DB_PASSWORD": value}) == {}


def test_a_secret_variable_is_replaced_as_a_whole_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "training")
    assert as_interpolation("s3://me:training@host/trainings") == "s3://me:${oc.env:DB_PASSWORD}@host/trainings"
    assert redact("login with training failed") == "login with *** failed"


def test_a_message_has_a_bounded_length() -> None:
    assert len(str(UserError(f"class {'a' * 1_000_000} is unknown"))) < MAX_MESSAGE + 10
