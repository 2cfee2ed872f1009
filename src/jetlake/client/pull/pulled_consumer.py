"""The consumer that pulls go to: its subject, its configuration, and whether its messages wait for an ack."""

from __future__ import annotations

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.messages.message import Message
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.enums import AckPolicy
from jetlake.model.replies import ConsumerDeleteReply, ConsumerInfoReply

__all__ = ["PulledConsumer"]


class PulledConsumer:
    """A pull consumer of a stream, as fetches and continuous pulls use it.

    Attributes:
        stream_name: the stream's name.
        name: the consumer's name.
        pull_subject: the subject that pull requests are published to.
        cached_info: the server's last answer to CONSUMER.INFO.
        needs_ack: whether messages wait for their acknowledgement.

    Raises:
        InvalidOptionError: the consumer is push based.
    """

    __slots__ = ("_api", "cached_info", "name", "needs_ack", "pull_subject", "stream_name")

    def __init__(self, api: ApiCaller, info: ConsumerInfo) -> None:
        if info.config.is_push:
            raise InvalidOptionError(
                f"consumer {info.name!r} is push based: it delivers to {info.config.deliver_subject!r}; "
                "use js.subscribe with bind, or create a pull consumer"
            )
        self._api = api
        self.stream_name = info.stream_name
        self.name = info.name
        self.pull_subject = api.subject("CONSUMER.MSG.NEXT", info.stream_name, info.name)
        self._take_info(info)

    def _take_info(self, info: ConsumerInfo) -> None:
        self.cached_info = info
        self.needs_ack = info.config.ack_policy is not AckPolicy.NONE

    @property
    def config(self) -> ConsumerConfig:
        """The configuration in the server's last answer."""
        return self.cached_info.config

    @property
    def leader(self) -> str:
        """The server that leads the consumer's cluster group in the server's last answer; empty outside of clusters."""
        return self.cached_info.cluster.leader if self.cached_info.cluster is not None else ""

    @property
    def can_move(self) -> bool:
        """Whether the consumer is in a cluster, where pulls are lost when another server becomes its leader."""
        cluster = self.cached_info.cluster
        return cluster is not None and bool(cluster.name)

    def __repr__(self) -> str:
        return f"{self.name!r} of {self.stream_name!r}"

    def prepare(self, messages: list[Message]) -> None:
        """Mark messages that need no acknowledgement, so that none is sent."""
        if not self.needs_ack and not messages[0]._settled:
            for message in messages:
                message._settled = True

    async def info(self, timeout_s: float | None = None) -> ConsumerInfo:
        """Ask the server about the consumer.

        Raises:
            ConsumerNotFoundError: the consumer was deleted.
        """
        info = await self._api.call(
            ConsumerInfoReply, "CONSUMER.INFO", self.stream_name, self.name, timeout_s=timeout_s
        )
        self._take_info(info)
        return info

    async def delete(self) -> None:
        """Delete the consumer on the server."""
        await self._api.call(ConsumerDeleteReply, "CONSUMER.DELETE", self.stream_name, self.name)
