from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol.manifest import ManifestRefused, manifest_text, parse_manifest, problems

A = hashlib.sha256(b"a").hexdigest()
B = hashlib.sha256(b"b").hexdigest()
PATHS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\\"), min_size=1, max_size=12
)


def test_a_manifest_is_what_sha256sum_writes() -> None:
    assert manifest_text({"b/two.py": B, "a one.py": A}) == f"{A}  a one.py\n{B}  b/two.py\n"
    assert manifest_text({}) == ""


@given(st.dictionaries(PATHS, st.sampled_from([A, B])))
def test_every_manifest_is_read_back_as_it_was(digests: dict[str, str]) -> None:
    assert parse_manifest(manifest_text(digests)) == digests


@pytest.mark.parametrize("path", ["", "a\nb", "a\rb", "a\\b"], ids=ascii)
def test_a_path_that_no_line_can_hold_is_refused(path: str) -> None:
    with pytest.raises(ManifestRefused, match="cannot stand"):
        manifest_text({path: A})


@pytest.mark.parametrize(
    "text",
    [
        f"{A} a",
        f"{A[:-1]}  a",
        f"{A.upper()}  a",
        f"{A}  ",
        "\n",
        f"{A}  a\n\n",
        f"{A}  a\n{B}  a\n",
        "nonsense",
    ],
    ids=ascii,
)
def test_what_is_no_manifest_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ManifestRefused, match=r"^line [123] "):
        parse_manifest(text)


def test_what_a_manifest_lists_has_to_exist_and_match() -> None:
    found = {"same": A, "changed": B}
    wrong = problems({"same": A, "changed": A, "gone": B}, found.get)
    assert wrong == [f"changed: expected {A}, found {B}", "gone: missing"]
    assert problems({"same": A}, found.get) == []
