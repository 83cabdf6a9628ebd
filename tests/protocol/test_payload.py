from __future__ import annotations

import hashlib
import json
import math
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol import limits
from fencepost.protocol.payload import (
    PayloadRefused,
    canonical_json,
    framed_sha256,
    refuse_too_deep,
    request_text,
    sha256_hex,
    stored_json_size,
    value_text,
)

# From the test data of RFC 8785's reference implementation: input, then the one lawful output.
VALUES_IN = r"""{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"""
VALUES_OUT = (
    '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    r'"string":"€$\u000f\nA'
    "'"
    r'B\"\\\\\"/"}'
)
WEIRD_IN = r"""{
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\u000a": "Newline",
  "1": "One",
  "\u0080": "Control\u007f",
  "\ud83d\ude02": "Smiley",
  "\u00f6": "Latin Small Letter O With Diaeresis",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "</script>": "Browser Challenge"
}"""
WEIRD_OUT = (
    r'{"\n":"Newline","\r":"Carriage Return","1":"One","</script>":"Browser Challenge",'
    '"\x80":"Control\x7f","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign",'
    '"😂":"Smiley","\ufb33":"Hebrew Letter Dalet With Dagesh"}'
)
UNICODE_IN = r"""{"Unnormalized Unicode":"A\u030a"}"""
UNICODE_OUT = '{"Unnormalized Unicode":"A\u030a"}'


@pytest.mark.parametrize(
    ("given_text", "canonical"),
    [(VALUES_IN, VALUES_OUT), (WEIRD_IN, WEIRD_OUT), (UNICODE_IN, UNICODE_OUT)],
    ids=["values", "weird", "unicode"],
)
def test_the_published_pairs_of_rfc_8785(given_text: str, canonical: str) -> None:
    assert canonical_json(json.loads(given_text)) == canonical
    assert canonical_json(json.loads(canonical)) == canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ("1", "1.0"),
        ("1", "1e0"),
        ("4.50", "4.5"),
        (r'"\u20ac"', '"€"'),
        ("[ 1 ,\n2 ]", "[1,2]"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("1e2", "100"),
    ],
)
def test_what_json_means_alike_has_one_text(one: str, other: str) -> None:
    assert canonical_json(json.loads(one)) == canonical_json(json.loads(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", '"1"'), ("1", "true"), ("[]", "null"), ('{"a":null}', "{}"), ("0", "false"), ('""', "null")],
)
def test_what_json_tells_apart_stays_apart(one: str, other: str) -> None:
    assert canonical_json(json.loads(one)) != canonical_json(json.loads(other))


def test_keys_are_sorted_as_utf16_has_them() -> None:
    assert sorted(["\ufb33", "😂"]) == ["\ufb33", "😂"]
    assert canonical_json({"\ufb33": 1, "😂": 2}) == '{"😂":2,"\ufb33":1}'


@pytest.mark.parametrize(
    "value",
    [
        9007199254740992,
        9007199254740993,
        -9007199254740992,
        10**4999,
        9007199254740992.0,
        -1e20,
        math.nan,
        math.inf,
        -math.inf,
        json.loads("1e400"),
        "\ud800",
        {"\ud800": 1},
        {"a": ["\udfff"]},
        {1: "a"},
        {None: 1},
        {1: "a", "b": 2},
        b"bytes",
        {1, 2},
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_keep_is_refused_in_a_sentence(value: object) -> None:
    with pytest.raises(PayloadRefused, match=r"not representable as canonical JSON|not encodable"):
        value_text([value])
    with pytest.raises(PayloadRefused):
        request_text({"value": value})


@pytest.mark.parametrize("number", [limits.FENCING_TOKEN_MAX, -limits.FENCING_TOKEN_MAX])
def test_the_greatest_integers_are_kept_exactly(number: int) -> None:
    assert canonical_json(number) == str(number)
    assert canonical_json(float(number)) == str(number)


def nested(depth: int) -> object:
    value: object = 1
    for level in range(depth - 1):
        value = [value] if level % 2 else {"a": value}
    return value


def test_nesting_is_bounded() -> None:
    assert json.loads(canonical_json(nested(limits.REQUEST_DEPTH_MAX))) == nested(limits.REQUEST_DEPTH_MAX)
    with pytest.raises(PayloadRefused, match="deeper than 64 levels"):
        canonical_json(nested(limits.REQUEST_DEPTH_MAX + 1))


def test_a_hundred_thousand_levels_do_not_exhaust_the_stack() -> None:
    with pytest.raises(PayloadRefused, match="deeper"):
        canonical_json(nested(100_000))


def test_shared_parts_do_not_exhaust_the_memory() -> None:
    value: object = 1
    for _ in range(9):
        value = (value,) * 800
    with pytest.raises(PayloadRefused, match="nothing that is accepted holds so many"):
        refuse_too_deep(value)


def test_text_is_its_own_value_and_anything_else_its_canonical_json() -> None:
    assert value_text('{ "a": 1 }') == '{ "a": 1 }'
    assert value_text("") == ""
    assert value_text({"b": (1, 2.0), "a": None}) == '{"a":null,"b":[1,2]}'


def test_a_lone_surrogate_in_text_is_refused_with_its_place() -> None:
    with pytest.raises(PayloadRefused, match="at character 3: lone surrogate"):
        value_text("abc\ud800")


@pytest.mark.parametrize(("character", "stored"), [("a", 1), ("<", 6), ('"', 2), ("€", 3)])
def test_a_value_is_bounded_as_it_is_stored(character: str, stored: int) -> None:
    fits = character * (limits.VALUE_BYTES_MAX // stored)
    assert value_text(fits) == fits
    with pytest.raises(PayloadRefused, match="over the limit of 16384: store it elsewhere"):
        value_text(fits + character)


def test_a_request_is_an_object_within_its_limit() -> None:
    room = limits.REQUEST_BYTES_MAX - limits.stored_size('{"a":""}')
    assert limits.stored_size(request_text({"a": "x" * room})) == limits.REQUEST_BYTES_MAX
    with pytest.raises(PayloadRefused, match="takes 65537 bytes, over the limit of 65536"):
        request_text({"a": "x" * (room + 1)})
    with pytest.raises(PayloadRefused, match="a request is a JSON object, got list"):
        request_text([1])  # type: ignore[arg-type]
    assert request_text(MappingProxyType({"b": 1, "a": 2})) == '{"a":2,"b":1}'


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-(2**53) + 1, 2**53 - 1)
    | st.floats(min_value=1e21, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON_VALUES)
def test_canonical_json_means_the_same_and_is_stable(value: object) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text
    assert json.loads(text) == value


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_whole_value_takes_its_texts_and_its_punctuation(text: str) -> None:
    assert stored_json_size({text: [text, 1, None]}) == 2 * limits.stored_size(text) + len('{"":["",1,null]}')


def test_hashes_are_over_the_bytes_of_utf8() -> None:
    assert sha256_hex("€") == hashlib.sha256(b"\xe2\x82\xac").hexdigest()
    assert sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_framed_hash_is_over_lengths_in_bytes_and_parts() -> None:
    assert framed_sha256("€", "ab") == hashlib.sha256("3:€2:ab".encode()).hexdigest()


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_no_two_lists_share_a_framed_hash(one: list[str], other: list[str]) -> None:
    assert (framed_sha256(*one) == framed_sha256(*other)) is (one == other)


@pytest.mark.parametrize(
    ("one", "other"), [(("a", "b"), ("ab",)), (("a", "b"), ("ab", "")), (("1:a",), ("1", "a")), ((), ("",))]
)
def test_parts_cannot_be_shifted(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert framed_sha256(*one) != framed_sha256(*other)
