"""S3 URIs that a tenant may name, judged as text alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.errors import InvalidRequest
from lorry.registry.s3uris import PREFIXES_MAX, URI_MAX, S3Folder, check_import, check_prefixes, parse_folder

SEGMENT = st.from_regex(r"[a-z0-9][A-Za-z0-9_=-]{0,8}(\.[A-Za-z0-9]{1,4})?", fullmatch=True)

BAD = [
    "",
    "s3://",
    "s3:///p/",
    "s3://bucket",
    "s3://bucket/",
    "s3://bucket//",
    "s3://bucket//p/",
    "s3://bucket/p//",
    "s3://bucket/p//q/",
    "s3://bucket/../p/",
    "s3://bucket/p/../",
    "s3://bucket/p/./q/",
    "s3://bucket/./",
    "s3://bucket/a..b/",
    "s3://bucket/p/?versionId=1",
    "s3://bucket/p/#x/",
    "s3://bucket/p%2f..%2fq/",
    "s3://bucket/p q/",
    "s3://bucket/p\\q/",
    "s3://bucket/p/\n",
    "s3://bucket/p/\0/",
    "s3://bucket/é/",
    "s3://user@bucket/p/",
    "s3://user:secret@bucket/p/",
    "s3://bucket:9000/p/",
    "s3://169.254.169.254/latest/",
    "s3://[::1]/p/",
    "s3://ab/p/",
    "s3://" + "a" * 64 + "/p/",
    "s3://Bucket/p/",
    "s3://bucket_x/p/",
    "s3://-bucket/p/",
    "s3://bucket-/p/",
    "s3://.bucket/p/",
    "s3://bucket./p/",
    "s3://a..bc/p/",
    "s3://a.-bc/p/",
    "s3://xn--bucket/p/",
    "s3://sthree-x/p/",
    "s3://amzn-s3-demo-x/p/",
    "s3://bucket-s3alias/p/",
    "s3://bucket--ol-s3/p/",
    "s3://bucket.mrap/p/",
    "s3://bucket--x-s3/p/",
    "S3://bucket/p/",
    "http://bucket/p/",
    "https://bucket.s3.amazonaws.com/p/",
    "file:///etc/",
    "//bucket/p/",
    " s3://bucket/p/",
    "s3://bucket/" + "a" * URI_MAX + "/",
]


@pytest.mark.parametrize("bad", BAD)
def test_not_a_folder(bad: str) -> None:
    with pytest.raises(InvalidRequest, match=r"import_prefixes\[0\]: ") as caught:
        check_prefixes("import_prefixes", [bad])
    assert caught.value.violations[0].field == "import_prefixes[0]"


@given(st.lists(SEGMENT, min_size=1, max_size=5))
def test_round_trip(segments: list[str]) -> None:
    text = f"s3://my-bucket.eu/{'/'.join(segments)}"
    folder = S3Folder("my-bucket.eu", "/".join(segments) + "/")
    assert parse_folder("f", text) == parse_folder("f", text + "/") == folder
    assert check_prefixes("f", [text + "/", text + "/"]) == [text + "/"]


@given(st.text(alphabet="s3:/ab.-_=%?#@\\\n", max_size=40))
def test_what_parses_prints_itself(text: str) -> None:
    try:
        folder = parse_folder("f", text)
    except InvalidRequest:
        return
    assert str(folder).rstrip("/") == text.rstrip("/")
    assert ".." not in text
    assert "//" not in text.removeprefix("s3://")


def test_a_prefix_ends_with_a_slash_and_there_are_few() -> None:
    with pytest.raises(InvalidRequest, match="does not end"):
        check_prefixes("import_prefixes", ["s3://bucket/team-a"])
    many = [f"s3://bucket/{index}/" for index in range(PREFIXES_MAX + 1)]
    assert check_prefixes("import_prefixes", many[1:]) == many[1:]
    with pytest.raises(InvalidRequest, match="17 prefixes"):
        check_prefixes("import_prefixes", many)


def test_an_import_lies_within_a_prefix() -> None:
    allowed = ["s3://bucket/team-a/", "s3://other/x/y/"]
    for good in ("s3://bucket/team-a", "s3://bucket/team-a/", "s3://bucket/team-a/json/v3", "s3://other/x/y/z/"):
        assert str(check_import("s3_uri", good, allowed)).startswith("s3://")
    words = set()
    for bad in ("s3://bucket/team-abc/x", "s3://bucket/team", "s3://other/x", "s3://third/team-a/x"):
        with pytest.raises(InvalidRequest) as caught:
            check_import("s3_uri", bad, allowed)
        words.add(caught.value.message.replace(bad, "").replace("'/'", "''"))
    assert len(words) == 1
    with pytest.raises(InvalidRequest):
        check_import("s3_uri", "s3://bucket/team-a/../team-b/", allowed)
    with pytest.raises(InvalidRequest):
        check_import("s3_uri", "s3://bucket/team-a/", [])
