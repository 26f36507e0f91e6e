"""Migrations of the store's tables. To add one: ``versions/<number>_<what>.py``, and the same in `store.tables`."""
