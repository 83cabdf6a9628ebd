from __future__ import annotations

import pytest

from tests.repo.seeded_bugs import BUGS, Bug, broken_text


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.rule)
def test_a_seeded_bug_is_still_one(bug: Bug) -> None:
    """The line that it breaks is there, and what comes out is Python that says something else."""
    compile(broken_text(bug), bug.file, "exec")
