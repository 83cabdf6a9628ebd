"""MANIFEST-01: what a manifest lists exists, and its SHA-256 matches.

A manifest is text as `sha256sum` writes and checks it: 64 hexadecimal digits, two spaces, a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

_LINE: Final = re.compile(r"^([0-9a-f]{64})  (.+)$")


class ManifestRefused(ValueError):  # noqa: N818
    """A line that is no manifest line, or a path that no line can hold."""


def manifest_text(digests: Mapping[str, str]) -> str:
    """One line for each path, sorted. Raises `ManifestRefused` for a path with a line break or backslash."""
    for path in digests:
        if not path or any(character in path for character in "\n\r\\"):
            raise ManifestRefused(f"{path!r} cannot stand in a manifest")
    return "".join(f"{digests[path]}  {path}\n" for path in sorted(digests))


def parse_manifest(text: str) -> dict[str, str]:
    """Path to digest; raises `ManifestRefused` with the line that is none, or that repeats a path."""
    digests: dict[str, str] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        match = _LINE.fullmatch(line)
        if match is None or match.group(2) in digests:
            raise ManifestRefused(f"line {number} is no manifest line, or repeats a path: {line[:80]!r}")
        digests[match.group(2)] = match.group(1)
    return digests


def problems(digests: Mapping[str, str], digest_of: Callable[[str], str | None]) -> list[str]:
    """What is wrong: a listed path that `digest_of` does not find, or whose digest differs."""
    wrong: list[str] = []
    for path, expected in sorted(digests.items()):
        found = digest_of(path)
        if found is None:
            wrong.append(f"{path}: missing")
        elif found != expected:
            wrong.append(f"{path}: expected {expected}, found {found}")
    return wrong
