"""The description of an object, as different clients write it."""

import json

import pytest

from jetlake.client.objects.info import ObjectInfo, ObjectLink, decode_info, encode_info, is_digest, written_digest
from jetlake.errors import ObjectError


def read(data):
    return decode_info("B", json.dumps(data).encode(), subject="s", revision=7, time_ns=8)


def test_what_is_written():
    info = ObjectInfo(name="o", bucket="B", nuid="N", size=1, chunks=1, digest="SHA-256=x", chunk_size=5)
    assert json.loads(encode_info(info)) == {
        "name": "o",
        "options": {"max_chunk_size": 5},
        "bucket": "B",
        "nuid": "N",
        "size": 1,
        "mtime": "0001-01-01T00:00:00Z",
        "chunks": 1,
        "digest": "SHA-256=x",
    }
    link = ObjectInfo(name="l", bucket="B", nuid="N", link=ObjectLink(bucket="C", name="o"))
    assert json.loads(encode_info(link))["options"] == {"link": {"bucket": "C", "name": "o"}}
    assert decode_info("B", encode_info(link), subject="s", revision=0, time_ns=0) == link


def test_what_other_clients_write():
    info = read({"name": "o", "headers": {"A": "1", "B": ["2", "3"]}, "mtime": "", "options": None, "deleted": None})
    assert (info.headers, info.is_deleted, info.link) == ({"A": ["1"], "B": ["2", "3"]}, False, None)
    assert (info.bucket, info.revision, info.modified_ns, info.size) == ("B", 7, 8, 0)
    assert read({"name": "o", "mtime": 5, "headers": None, "more": {}}).name == "o"
    for data in ([], {}, {"name": 5}, {"name": "o", "size": -1}, {"name": "o", "options": {"link": {}}}):
        with pytest.raises(ObjectError, match="message 7 of object store 'B', on subject 's', describes no object"):
            read(data)


def test_digests():
    digest = bytes(range(32))
    written = written_digest(digest)
    assert written == "SHA-256=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    for same in (written, written[:-1], "sha-256=" + written[8:]):
        assert is_digest(same, digest)
    for other in ("", "SHA-256=", "MD5=" + written[8:], written.replace("A", "B")):
        assert not is_digest(other, digest)
