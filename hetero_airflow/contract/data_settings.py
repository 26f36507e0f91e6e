"""What a task is told about data: its host's cache folder, and the endpoints of the object stores."""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.settings import DATA_VARIABLE


class DataSettings(BaseModel):
    """The settings of data. They travel as JSON in the task's environment and hold no secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str | None = None
    """None: the cache folder of the user (``XDG_CACHE_HOME``)."""
    size_bytes: int | None = None
    """How much the folder may hold. None: half of what is free for it."""
    own_endpoints: dict[str, str] = {}
    """Scheme of a URL → the endpoint of the connection."""
    endpoints: tuple[str, ...] = ()
    """Endpoints that are allowed besides the providers' own."""

    @property
    def root(self) -> Path:
        """The path of the cache folder."""
        if self.folder:
            return Path(self.folder)
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hetero_airflow" / "data"

    @classmethod
    def of(cls, text: str | None) -> "DataSettings":
        """Read what the task's environment has.

        :raises SettingsError: it can't be read
        """
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError as error:
            raise SettingsError(
                f"the settings of data in {DATA_VARIABLE}",
                found=shorten(text),
                remedy="Leave that variable to HeteroExecutor, or unset it",
            ) from error
