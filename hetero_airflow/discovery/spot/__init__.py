"""Notices of cloud providers that take a machine back: `notices` reads them, and `watch` does so in a thread."""
