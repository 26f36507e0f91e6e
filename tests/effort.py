"""How much a test tries: little in ``make test``, more in ``make system``."""

from __future__ import annotations

import os

IS_LONG = bool(os.environ.get("LONG_TESTS"))
"""Whether tests take their long form: more examples, seeds and sizes."""
