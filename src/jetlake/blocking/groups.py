"""Blocking forms of consumer groups: handlers run in threads and may block."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Self, Unpack

from jetlake.blocking.facade import Call, Facade, View, Wrapped
from jetlake.blocking.loop_thread import call_in_thread
from jetlake.blocking.message import Message
from jetlake.client.groups.config import GroupConfig
from jetlake.client.groups.groups import ConsumerGroup as AsyncConsumerGroup
from jetlake.client.groups.groups import ConsumerGroups as AsyncConsumerGroups
from jetlake.client.groups.member import GroupMember as AsyncGroupMember
from jetlake.client.groups.member import MemberOptions
from jetlake.errors import InvalidOptionError

BlockingHandler = Callable[[Message], object]
"""A plain function that takes a message."""


class GroupMember(Facade):
    """The blocking form of `jetlake.client.GroupMember`: use it as a context manager, or `start` and `stop`."""

    _inner: AsyncGroupMember

    stop = Call(AsyncGroupMember.stop)
    wait = Call(AsyncGroupMember.wait)

    name = View[str]("The member's name.")
    partitions = View[tuple[int, ...]]("Its partitions, as far as it has heard.")
    is_active = View[bool]("Whether this instance gets messages, and no other instance of the member.")

    def start(self) -> Self:
        """Start working; entering the context manager does it too."""
        self._thread.call(self._inner.start())
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class ConsumerGroup(Facade):
    """The blocking form of `jetlake.client.ConsumerGroup`."""

    _inner: AsyncConsumerGroup

    refresh = Call(AsyncConsumerGroup.refresh)
    add_members = Call(AsyncConsumerGroup.add_members)
    remove_members = Call(AsyncConsumerGroup.remove_members)
    map_members = Call(AsyncConsumerGroup.map_members)
    active_members = Call(AsyncConsumerGroup.active_members)
    step_down = Call(AsyncConsumerGroup.step_down)

    name = View[str]("The group's name.")
    stream_name = View[str]("The stream that the group takes messages of.")
    config = View[GroupConfig]("The group as it was when it was last asked for.")
    is_elastic = View[bool]("Whether its members may change.")

    def partitions(self, member: str) -> tuple[int, ...]:
        """Return the partitions of a member according to `config`; none for other names."""
        return self._inner.partitions(member)

    def consume(self, member: str, handler: BlockingHandler, **options: Unpack[MemberOptions]) -> GroupMember:
        """Work as a member, as `jetlake.client.ConsumerGroup.consume`; the handler runs in a thread of its own."""
        if not callable(handler):
            raise InvalidOptionError(f"handler must be a function that takes a message, not {handler!r}")

        @wraps(handler)
        async def run(message: Any) -> None:
            await call_in_thread(handler, message)

        async def make() -> AsyncGroupMember:
            return self._inner.consume(member, run, **options)

        return GroupMember(self._thread.call(make()), self._thread)


class ConsumerGroups(Facade):
    """The blocking form of `jetlake.client.ConsumerGroups`."""

    _inner: AsyncConsumerGroups

    create_elastic = Wrapped(AsyncConsumerGroups.create_elastic, ConsumerGroup)
    create_static = Wrapped(AsyncConsumerGroups.create_static, ConsumerGroup)
    get = Wrapped(AsyncConsumerGroups.get, ConsumerGroup)
    names = Call(AsyncConsumerGroups.names)
    delete = Call(AsyncConsumerGroups.delete)

    stream_name = View[str]("The stream whose groups these are.")
