"""A link: what one leaf connection carries between an account here and an account of the hub.

The reasons are in decision 25 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetlake.protocol.frames import LeafMsg, LeafSub, LeafUnsub
from jetlake.protocol.leaf import leaf_msg, leaf_sub
from jetlake.protocol.subjects import is_valid_subscribe
from jetlake.server.config.leaf_options import LeafRemote
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.remote import Remote, RemoteLink
from jetlake.server.engine.routing.subscription import Message
from jetlake.server.shell.leaf.announcements import Announcements
from jetlake.server.shell.leaf.hub_info import HubInfo
from jetlake.server.shell.leaf.rules import LeafRules
from jetlake.store.steps import Steps

__all__ = ["LeafLink", "LoopError"]

# Interest of a hub that is gone is removed in groups, between which others go first.
_GROUP = 100
# Tokens of an ack subject before the one that may carry the subject of a stored message.
_ACK_TOKENS = 8


class LoopError(Exception):
    """The hub announces what only this server announces: the servers form a loop."""


class LeafLink(RemoteLink):
    """The interest and the messages of one leaf connection.

    Args:
        account: the account here.
        announcements: the account's interest.
        remote: what the configuration denies.
        domain: this server's JetStream domain; empty = none.
        report: logs a message that could not be sent.

    Attributes:
        in_msgs: messages from the hub.
        in_bytes: the bytes of their headers and payloads.
    """

    def __init__(
        self,
        account: Account,
        announcements: Announcements,
        remote: LeafRemote,
        domain: str,
        report: Callable[[str], None],
    ) -> None:
        self.account = account
        self.in_msgs = self.in_bytes = 0
        self._announcements = announcements
        self._remote = remote
        self._domain = domain
        self._report = report
        self._info = HubInfo()
        self._rules = LeafRules(remote, domain, self._info)
        self._send: Callable[[bytes], None]
        self._remotes: dict[tuple[bytes, bytes], Remote] = {}

    def open(self, info: HubInfo, send: Callable[[bytes], None]) -> None:
        """Announce all interest of the account, and every change from now on.

        Args:
            info: the hub's limits and permissions.
            send: queues frames for the hub.
        """
        self._info, self._send = info, send
        self._rules = LeafRules(self._remote, self._domain, info)
        lines = [
            leaf_sub(subject, queue, count)
            for subject, queue, count in self._announcements
            if self._rules.may_announce(subject, queue)
        ]
        self._send(b"".join(lines))
        self._announcements.follow(self._announce)

    def close(self) -> Steps[None]:
        """Forget the interest of the hub; nothing is sent from the first step on."""
        self.closed = True
        self._announcements.unfollow(self._announce)
        remotes, self._remotes = self._remotes, {}
        return self._forget(list(remotes.values()))

    def _forget(self, remotes: list[Remote]) -> Steps[None]:
        for place, remote in enumerate(remotes, 1):
            self.account.remove_remote(remote)
            if not place % _GROUP:
                yield

    @property
    def subjects(self) -> list[bytes]:
        """The subjects that the hub has interest in."""
        return [subject for subject, _ in self._remotes]

    def client_info(self) -> dict[str, Any]:
        return {"acc": self.account.name, "name": self._info.server_name, "kind": "Leafnode"}

    # To the hub

    def send(self, data: bytes) -> None:
        self._send(data)

    def _announce(self, subject: bytes, queue: bytes, count: int) -> None:
        if self._rules.may_announce(subject, queue):
            self._send(leaf_sub(subject, queue, count))

    def forward(self, address: bytes, messages: list[Message], queues: list[bytes]) -> int:
        if self.closed or not self._rules.may_send(address):
            return 0
        info = self._info
        frames: list[bytes] = []
        sent = size = 0
        for place, (subject, reply, header, payload) in enumerate(messages, 1):
            length = len(header) + len(payload)
            if length > info.max_payload:
                self._report(f"a message of {length:,} bytes on {address!r} is too large for the hub and was not sent")
                continue
            if subject != address and reply.startswith(b"$JS.ACK."):
                # The hub's clients get a stored message under its own subject.
                reply = b"%b@%b" % (reply, subject)
            frames.append(leaf_msg(address, reply, queues, header if info.headers else b"", payload))
            size += length
            sent = place
        if frames:
            self.out_msgs += len(frames)
            self.out_bytes += size
            self._send(b"".join(frames))
        return sent

    # From the hub

    def subscribe(self, frame: LeafSub) -> None:
        """Register interest of the hub; an invalid subject is ignored.

        Raises:
            LoopError: the interest is this server's own.
        """
        subject, queue = frame.subject, frame.queue
        if subject == self._announcements.loop_subject:
            raise LoopError
        remote = self._remotes.get((subject, queue))
        if remote is not None:
            remote.weight = frame.weight
        elif is_valid_subscribe(subject) and not subject.startswith(b"$LDS.") and not self._rules.is_pointless(subject):
            self._remotes[subject, queue] = self.account.add_remote(subject, self, queue, frame.weight)

    def unsubscribe(self, frame: LeafUnsub) -> None:
        """Remove interest of the hub; unknown interest is ignored."""
        remote = self._remotes.pop((frame.subject, frame.queue), None)
        if remote is not None:
            self.account.remove_remote(remote)

    def receive(self, frames: list[LeafMsg]) -> None:
        """Deliver messages from the hub to the account's subscribers, and to the queue groups that they name.

        Deliveries of a stream that follow each other on one subject stay together.
        """
        run: list[Message] = []
        address = b""
        refused_replies = self._rules.refused_replies
        for frame in frames:
            subject, reply = frame.subject, frame.reply
            self.in_msgs += 1
            self.in_bytes += len(frame.header) + len(frame.payload)
            stored = b""
            if reply.startswith(b"$JS.ACK."):
                reply, stored = _split_reply(reply)
            elif reply.startswith(refused_replies):
                self._report(f"a message of the hub on {subject!r} named {reply!r} as its reply, and gets no answer")
                reply = b""
            if run and not (stored and subject == address and frame.queues == self.groups):
                self.account.send_to(address, run, self)
                run = []
            address, self.groups = subject, frame.queues
            if not self._rules.may_receive(subject):
                continue
            if stored:
                run.append((stored, reply, frame.header, frame.payload))
            else:
                self._publish(subject, reply, frame.header, frame.payload)
        if run:
            self.account.send_to(address, run, self)
        self.groups = None

    def _publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        mapped: bytes | None = subject
        if self.account.mappings is not None:
            mapped = self.account.mappings.apply(subject)
            if mapped != subject:
                self.groups = None  # The hub could not know the groups of the subject that this one stands for.
        if mapped is not None:
            self.account.publish(mapped, reply, header, payload, self)


def _split_reply(reply: bytes) -> tuple[bytes, bytes]:
    """Split `$JS.ACK.….<pending>@<subject>` into the ack subject and the subject of the stored message, if any."""
    tokens = reply.split(b".", _ACK_TOKENS)
    _, at, subject = tokens[-1].partition(b"@") if len(tokens) > _ACK_TOKENS else (b"", b"", b"")
    if not at:
        return reply, b""
    return reply[: len(reply) - len(subject) - 1], subject
