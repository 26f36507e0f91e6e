"""Opens the store of a place. The scheme of its URL selects the store."""

import re
from urllib.parse import SplitResult, unquote, urlsplit

from hetero_airflow.checkpoints import CHECKPOINT_STORES, GROUP, OBJECT_STORES
from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.registry import load, names
from hetero_airflow.validation import did_you_mean

NAME = "checkpoint_url"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", re.ASCII)
"""What all object stores accept, or more."""

REMEDY = f"Set {NAME} to file:///shared/folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"


def open_store(place: CheckpointPlace) -> CheckpointStore:
    """The store of a place. Its keys are below the place's URL. Opens no connection yet.

    :raises SettingsError: a URL that can't be read, a scheme without a store, or an endpoint that is not allowed
    :raises RegistryError: the store's library is missing: boto3 comes with the extra ``s3``, obstore with ``cloud``
    """
    store: CheckpointStore = load(GROUP, CHECKPOINT_STORES, check_url(place.url).scheme)(place)
    return store


def check_url(url: str, name: str = NAME) -> SplitResult:
    """The parts of a URL whose scheme has a store.

    :raises SettingsError: there is none, or the URL can't be read
    """
    parts = split_url(url, name)
    store_names = names(GROUP, CHECKPOINT_STORES)
    if parts.scheme not in store_names:
        raise SettingsError(
            f"{name}={shorten(url)}",
            found=f"no store for the scheme {shorten(parts.scheme)}",
            remedy=did_you_mean(parts.scheme, store_names) + REMEDY.replace(NAME, name),
        )
    problem = ""
    if parts.scheme in OBJECT_STORES and not _BUCKET.fullmatch(parts.netloc):
        problem = "no name of a bucket"
    elif parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not re.match(r"/+[^/]", parts.path)):
        problem = "no folder of this host"
    if problem:
        raise SettingsError(f"{name}={shorten(url)}", found=problem, remedy=REMEDY.replace(NAME, name))
    return parts


def split_url(url: str, name: str = NAME) -> SplitResult:
    """The parts of a store's URL, with the path unquoted. A URL with a password never gets into an error.

    :param name: of the option that has the URL, for errors

    >>> split_url("s3://models/team%20a").path
    '/team a'

    :raises SettingsError: no URL, one with a user, a query or a fragment, or a path with ``..``
    """
    try:
        parts = urlsplit(url)
        user = parts.username
    except ValueError as error:
        raise SettingsError(f"{name}={shorten(url)}", found="no URL", remedy=REMEDY.replace(NAME, name)) from error
    if user is not None or "@" in parts.netloc:
        raise SettingsError(name, found="a user or password in it", remedy="Put the key into the Airflow connection")
    path = unquote(parts.path)
    checks = {
        "no scheme": not parts.scheme,
        "a query or a fragment": parts.query or parts.fragment,
        "a character that can't be printed": not url.isprintable() or not path.isprintable(),
        "a part '..'": ".." in path.split("/"),
    }
    for problem, is_there in checks.items():
        if is_there:
            raise SettingsError(f"{name}={shorten(url)}", found=problem, remedy=REMEDY.replace(NAME, name))
    return parts._replace(path=path)
