"""Who has which partition, and what the bucket keeps; the shares are those that other libraries compute."""

import msgspec
import pytest

from jetlake.client.groups.config import (
    ElasticGroupConfig,
    MemberMapping,
    PartitioningFilter,
    StaticGroupConfig,
    check_config,
    decode_config,
    is_member,
    is_same_group,
    member_filters,
    member_partitions,
    partition_transform,
    with_mappings,
    with_members,
)
from jetlake.errors import ConsumerGroupError, InvalidOptionError


def elastic(partitions, *members, filters=(), mappings=()):
    return ElasticGroupConfig(
        partitions,
        members=members,
        member_mappings=tuple(MemberMapping(name, tuple(own)) for name, own in mappings),
        partitioning_filters=tuple(PartitioningFilter(subject, tuple(key)) for subject, key in filters),
    )


@pytest.mark.parametrize(
    ("partitions", "members", "shares"),
    [
        (6, "ab", {"a": (0, 1, 2), "b": (3, 4, 5)}),
        (7, "abc", {"a": (0, 1, 6), "b": (2, 3), "c": (4, 5)}),
        (8, "cab", {"a": (0, 1, 6), "b": (2, 3, 7), "c": (4, 5)}),
        (2, "cab", {"a": (0,), "b": (1,), "c": ()}),
        (3, "aab", {"a": (0, 2), "b": (1,)}),
        (4, "", {"a": ()}),
    ],
)
def test_partitions_are_shared_out_in_rows_and_the_rest_to_the_first_members(partitions, members, shares):
    config = elastic(partitions, *members)
    assert {name: member_partitions(config, name) for name in shares} == shares


@pytest.mark.parametrize("partitions", [1, 2, 5, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_every_partition_has_one_member(partitions, count):
    names = [f"m{number}" for number in range(count)]
    config = elastic(partitions, *names)
    assert sorted(one for name in names for one in member_partitions(config, name)) == list(range(partitions))


def test_filters_are_the_groups_subjects_in_the_members_partitions():
    config = elastic(4, "a", "b", filters=[("orders.*.*", (1,)), ("returns.>", ())])
    assert member_filters(config, "b") == ["2.orders.*.*", "3.orders.*.*", "2.returns.>", "3.returns.>"]
    assert member_filters(elastic(2, "a"), "a") == ["0.>", "1.>"]
    assert member_filters(elastic(2, filters=[("o.*", (1,))], mappings=[("a", [1]), ("b", [0])]), "a") == ["1.>"]
    assert member_filters(StaticGroupConfig(2, members=("a",), filters=("o.*",)), "a") == ["0.o.*", "1.o.*"]
    assert member_filters(StaticGroupConfig(1, members=("a",), filter="o.*"), "a") == ["0.o.*"]
    assert member_filters(StaticGroupConfig(1, members=("a",)), "b") == []


@pytest.mark.parametrize(
    ("subject", "key", "transform"),
    [
        ("orders.*.*", (1,), "{{Partition(4,1)}}.orders.{{Wildcard(1)}}.{{Wildcard(2)}}"),
        ("*.x.*", (2, 1), "{{Partition(4,2,1)}}.{{Wildcard(1)}}.x.{{Wildcard(2)}}"),
        ("orders.>", (), "{{Partition(4)}}.orders.>"),
        ("a.*.>", (1,), "{{Partition(4,1)}}.a.{{Wildcard(1)}}.>"),
    ],
)
def test_the_transform_puts_the_partition_first(subject, key, transform):
    assert partition_transform(PartitioningFilter(subject, key), 4) == transform


@pytest.mark.parametrize(
    "config",
    [
        elastic(0),
        elastic(2, "a b"),
        elastic(2, "a", mappings=[("b", [0, 1])]),
        elastic(2, mappings=[("a", [0])]),
        elastic(2, mappings=[("a", [0, 1]), ("b", [1])]),
        elastic(2, mappings=[("a", [0]), ("a", [1])]),
        elastic(2, mappings=[("a", [0, 2])]),
        elastic(2, filters=[("orders.new", ())]),
        elastic(2, filters=[("orders.*", (2,))]),
        elastic(2, filters=[("orders.*.*", (1, 1))]),
        elastic(2, filters=[("orders.*", (0,))]),
    ],
)
def test_what_no_group_can_be(config):
    with pytest.raises(InvalidOptionError):
        check_config(config)


def test_the_bucket_keeps_what_the_go_library_writes():
    text = (
        b'{"max_members":4,"partitioning_filters":[{"filter":"o.*","partitioning_wildcards":[1]}],'
        b'"max_buffered_msg":100,"members":["a","b"]}'
    )
    config = decode_config(ElasticGroupConfig, "S.g", text)
    assert (config.members, config.max_buffered_msg, config.max_buffered_bytes) == (("a", "b"), 100, 0)
    assert msgspec.json.decode(msgspec.json.encode(config)) == msgspec.json.decode(text)
    assert member_filters(
        decode_config(ElasticGroupConfig, "S.g", b'{"max_members":1,"partitioning_filters":null,"members":["a"]}'), "a"
    ) == ["0.>"]
    with pytest.raises(ConsumerGroupError, match=r"S\.g"):
        decode_config(ElasticGroupConfig, "S.g", b"{")
    with pytest.raises(ConsumerGroupError, match="every partition"):
        decode_config(StaticGroupConfig, "S.g", b'{"max_members":2,"member_mappings":[{"member":"a","partitions":[]}]}')


def test_members_and_mappings_exclude_each_other():
    config = with_members(elastic(3), ["b", "a", "b"])
    assert config.members == ("a", "b")
    mapped = with_mappings(config, {"x": [0], "y": [2, 1]})
    assert (mapped.members, is_member(mapped, "x"), is_member(mapped, "a")) == ((), True, False)
    with pytest.raises(ConsumerGroupError, match="mapped"):
        with_members(mapped, ["a"])
    assert with_members(with_mappings(mapped, None), ["a"]).members == ("a",)


def test_a_group_stays_the_same_whatever_its_members_and_however_none_is_written():
    filters = [("a.*", [1]), ("b.>", [])]
    group = elastic(4, "a", filters=filters)
    assert is_same_group(group, elastic(4, "b", "c", filters=filters))
    assert is_same_group(group, elastic(4, filters=filters, mappings=[("a", range(4))]))
    key = b'{"max_members":4,"partitioning_filters":[{"filter":"a.*","partitioning_wildcards":[1]},%b]}'
    null = b'{"filter":"b.>","partitioning_wildcards":null}'
    assert is_same_group(group, decode_config(ElasticGroupConfig, "S.g", key % null))
    everything = decode_config(ElasticGroupConfig, "S.g", b'{"max_members":4,"partitioning_filters":null}')
    assert is_same_group(elastic(4), everything)
    for other in (elastic(5, "a", filters=filters), elastic(4, "a", filters=filters[:1]), everything):
        assert not is_same_group(group, other)
    static = StaticGroupConfig(4, members=("a",))
    assert is_same_group(static, StaticGroupConfig(4, members=("a",)))
    assert not is_same_group(static, StaticGroupConfig(4, members=("b",)))
    assert not is_same_group(static, elastic(4, "a"))
