"""Property tests of the core run the same examples every time: a failure here is never luck."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("core", derandomize=True, database=None, deadline=None, max_examples=60)
settings.load_profile("core")
