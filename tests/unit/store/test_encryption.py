"""The keyring of an encrypted store: rotation at every crash, wrong and lost keys, damage, and stores in the clear."""

from pathlib import Path
from random import Random

import pytest

from jetlake.errors import ConfigError
from jetlake.store.files import keyring
from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.files.encryption import check_not_encrypted, open_encrypted
from jetlake.store.files.keyring import KEYRING_NAMES
from tests.support.faulty_disk import FaultyDisk, PowerCut

FOLDER = Path("/data/jetstream")
SEGMENT = FOLDER / "$G/streams/S/msgs/0000000001.seg"
META = FOLDER / "$G/streams/S/meta.json"


@pytest.fixture(autouse=True)
def cheap_guesses(monkeypatch):
    monkeypatch.setattr(keyring, "_COST", 16)


def open_with(disk, key, previous="", cipher="chacha"):
    return open_encrypted(disk, FOLDER, key, previous, cipher, lambda line: None)


def read(disk, path):
    handle = disk.open(path)
    try:
        return disk.read(handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def write(disk, path, data):
    disk.make_folder(path.parent)
    handle = disk.open(path, create=True)
    disk.write(handle, data, 0)
    disk.sync(handle)
    disk.close(handle)
    disk.sync_folder(path.parent)


@pytest.fixture
def disk():
    """An encrypted store with one message, its key `old`."""
    disk = FaultyDisk(Random(1))
    disk.make_folder(FOLDER)
    write(open_with(disk, "old"), SEGMENT, b"message")
    return disk


def snapshot(disk):
    return {path: disk.content(path) for path in disk.files()}


def test_the_same_key_opens_it_and_another_changes_nothing(disk):
    assert read(open_with(disk, "old"), SEGMENT) == b"message"
    before = snapshot(disk)
    for key, previous in (("other", ""), ("other", "third"), ("", "")):
        with pytest.raises(ConfigError, match=r"another key.*Nothing was changed"):
            open_with(disk, key, previous)
    with pytest.raises(ConfigError, match=r"set `key`.*Nothing was changed"):
        check_not_encrypted(disk, FOLDER)
    assert snapshot(disk) == before


def test_a_rotation_seals_the_keyring_and_writes_no_other_file(disk):
    before = snapshot(disk)
    assert read(open_with(disk, "new", "old", "aes"), SEGMENT) == b"message"
    changed = {path.name for path, data in snapshot(disk).items() if data != before[path]}
    assert changed == set(KEYRING_NAMES)
    assert read(open_with(disk, "new", cipher="aes"), SEGMENT) == b"message"
    with pytest.raises(ConfigError, match="another key"):
        open_with(disk, "old")


@pytest.mark.parametrize("names", [KEYRING_NAMES, *[(name,) for name in KEYRING_NAMES]])
def test_the_keyring_of_another_store_with_the_same_key_changes_nothing(disk, names):
    """Which of the two files is the store's own is known by the store's files, and only then is either rewritten."""
    other = FaultyDisk(Random(2))
    other.make_folder(FOLDER)
    open_with(other, "old")
    for name in names:
        disk.put(FOLDER / name, other.content(FOLDER / name))
    before = snapshot(disk)
    for keys in (("old", ""), ("new", "old")):
        if names == KEYRING_NAMES:
            with pytest.raises(ConfigError, match=r"another store.*Nothing was changed"):
                open_with(disk, *keys)
            assert snapshot(disk) == before
        else:
            assert read(open_with(disk, *keys), SEGMENT) == b"message"


def test_a_store_whose_only_file_a_power_cut_has_torn_is_its_own(disk):
    disk.put(SEGMENT, disk.content(SEGMENT)[:20])
    assert read(open_with(disk, "old"), SEGMENT) == b""


@pytest.mark.parametrize("left", ["old", "new", "both"])
def test_a_rotation_that_is_cut_at_any_moment_leaves_a_store_that_either_key_opens(left):
    """One of the keys is lost in the middle: the other opens the store as long as it has sealed one of the files."""
    outcomes = set()
    for cut_at in range(1, 40):
        disk = FaultyDisk(Random(cut_at))
        disk.make_folder(FOLDER)
        write(open_with(disk, "old"), SEGMENT, b"message")
        disk.cut_at = disk.operations + cut_at
        try:
            open_with(disk, "new", "old")
        except PowerCut:
            pass
        disk.cut_power()
        keys = {"old": ("old", ""), "new": ("new", ""), "both": ("new", "old")}[left]
        try:
            assert read(open_with(disk, *keys), SEGMENT) == b"message"
            outcomes.add("opened")
        except ConfigError as error:
            assert "another key" in str(error)
            outcomes.add("refused")
            # Nobody but who has neither key is kept out.
            other = {"old": ("new", ""), "new": ("old", "")}[left]
            assert read(open_with(disk, *other), SEGMENT) == b"message"
    assert outcomes == ({"opened"} if left == "both" else {"opened", "refused"})


def test_who_can_write_to_the_disk_cannot_pass_files_in_the_clear_off_as_the_stores(disk):
    """Only the key says that a store is not whole yet, whose files in the clear the next start encrypts."""
    open_with(disk, "old")
    write(disk, META, b"a stream that was never stored")
    for name in KEYRING_NAMES:
        write(disk, FOLDER / name, disk.content(FOLDER / name).replace(b'"is_whole":true', b'"is_whole":false'))
    with pytest.raises(ConfigError, match="another key"):
        open_with(disk, "old")
    # Nor that the state was not sealed at all.
    for name in KEYRING_NAMES:
        write(disk, FOLDER / name, disk.content(FOLDER / name).replace(b'"version":3', b'"version":1'))
    with pytest.raises(ConfigError, match="another key"):
        open_with(disk, "old")


def test_a_keyring_of_version_1_is_read_and_rewritten(disk, monkeypatch):
    monkeypatch.setattr(keyring, "_VERSION", 1)
    older = FaultyDisk(Random(1))
    older.make_folder(FOLDER)
    write(open_with(older, "old"), SEGMENT, b"message")
    for name in KEYRING_NAMES:
        assert b'"version":1' in older.content(FOLDER / name)
    monkeypatch.setattr(keyring, "_VERSION", 2)
    assert read(open_with(older, "old"), SEGMENT) == b"message"
    for name in KEYRING_NAMES:
        assert b'"version":2' in older.content(FOLDER / name)


def test_a_store_without_files_gets_keyed_hashes_and_any_other_keeps_its_plain_ones(disk, monkeypatch):
    assert open_with(disk, "old").hashing is not PLAIN_HASHING
    assert open_with(disk, "new", "old").hashing is not PLAIN_HASHING, "after a rotation"
    lines = []
    with_files = FaultyDisk(Random(1))
    write(with_files, SEGMENT, b"message")
    for _ in range(2):
        encrypted = open_encrypted(with_files, FOLDER, "key", "", "aes", lines.append)
        assert encrypted.hashing is PLAIN_HASHING
        assert "not authenticated" in lines[-1]
        lines.clear()
    monkeypatch.setattr(keyring, "_VERSION", 2)
    older = FaultyDisk(Random(1))
    older.make_folder(FOLDER)
    write(open_with(older, "old"), SEGMENT, b"message")
    monkeypatch.setattr(keyring, "_VERSION", 3)
    assert open_with(older, "old").hashing is PLAIN_HASHING
    assert open_with(older, "old").hashing is PLAIN_HASHING, "once the keyring is rewritten"


def test_nobody_without_the_key_says_that_a_store_has_plain_hashes(disk):
    for old, new in ((b'"is_authenticated":true', b'"is_authenticated":false'), (b'"version":3', b'"version":2')):
        copies = {name: disk.content(FOLDER / name) for name in KEYRING_NAMES}
        for name, data in copies.items():
            assert old in data
            disk.put(FOLDER / name, data.replace(old, new))
        with pytest.raises(ConfigError, match="another key"):
            open_with(disk, "old")
        for name, data in copies.items():
            disk.put(FOLDER / name, data)


@pytest.mark.parametrize("name", KEYRING_NAMES)
def test_one_file_of_the_keyring_may_be_damaged_or_gone(disk, name):
    size = len(disk.content(FOLDER / name))
    whole = disk.content(FOLDER / name)
    for offset in [*range(0, size, 7), None]:
        if offset is None:
            disk.remove(FOLDER / name)
        else:
            disk.flip(FOLDER / name, offset, 0x11)
        assert read(open_with(disk, "old"), SEGMENT) == b"message"
        assert disk.is_file(FOLDER / name)
    assert disk.content(FOLDER / name) != whole


def test_without_a_keyring_nothing_is_taken_for_a_store_in_the_clear(disk):
    for name in KEYRING_NAMES:
        disk.put(FOLDER / name, b"{}")
    before = snapshot(disk)
    with pytest.raises(ConfigError, match=r"are damaged.*Nothing was changed"):
        open_with(disk, "old")
    assert snapshot(disk) == before
    for name in KEYRING_NAMES:
        disk.remove(FOLDER / name)
    before = snapshot(disk)
    with pytest.raises(ConfigError, match=r"missing, but .* is encrypted.*Nothing was changed"):
        open_with(disk, "old")
    assert snapshot(disk) == before


@pytest.mark.parametrize("cost", [0, 1, 3, 1 << 30, -5])
def test_a_keyring_that_asks_for_too_much_is_damaged(disk, cost):
    for name in KEYRING_NAMES:
        text = disk.content(FOLDER / name).replace(b'"cost":16', b'"cost":%d' % cost)
        disk.put(FOLDER / name, text)
    with pytest.raises(ConfigError, match=r"damaged|another key"):
        open_with(disk, "old")


def test_a_store_in_the_clear_is_encrypted_whenever_the_power_goes():
    contents = {
        SEGMENT: b"A" * 5000 + bytes(3000),
        META: b'{"name": "S"}',
        FOLDER / "$G/streams.list": b"ORDERS-OF-2026\n",
    }
    foreign = FOLDER / "$G/notes.txt"
    for cut_at in range(1, 90):
        disk = FaultyDisk(Random(cut_at))
        for path, data in contents.items():
            write(disk, path, data)
        write(disk, foreign, b"of somebody else")
        disk.cut_at = disk.operations + cut_at
        try:
            open_with(disk, "key")
        except PowerCut:
            disk.cut_power()
        disk.cut_at = None
        encrypted = open_with(disk, "key")
        for path, data in contents.items():
            assert read(encrypted, path) == data, (cut_at, path)
            assert data[:10] not in disk.content(path)
        assert disk.content(foreign) == b"of somebody else"


def test_what_was_not_finished_in_the_clear_goes():
    disk = FaultyDisk(Random(1))
    write(disk, SEGMENT, b"message")
    write(disk, META.with_name("meta.json.tmp"), b"half")
    open_with(disk, "key")
    assert not disk.is_file(META.with_name("meta.json.tmp"))
