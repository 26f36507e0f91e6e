"""The command config: the settings that an installation needs, and a check of those that it has."""
