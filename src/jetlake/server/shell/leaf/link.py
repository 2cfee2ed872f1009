"""A link: what one leaf connection carries between an account here and an account of the other server.

A link is the same on both ends and for either server; `is_hub` says who enforces the permissions of the user that
the leaf node has at its hub.

The reasons are in decision 25 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetlake.errors import BadSubjectError
from jetlake.protocol.frames import LeafMsg, LeafSub, LeafUnsub
from jetlake.protocol.leaf import leaf_msg, leaf_sub
from jetlake.protocol.subjects import has_wildcards, is_valid_subscribe
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.remote import Remote, RemoteLink
from jetlake.server.engine.routing.subscription import Message
from jetlake.server.shell.leaf.announcements import HUBS, Announcements
from jetlake.server.shell.leaf.peer_info import PeerInfo
from jetlake.server.shell.leaf.rules import LeafRules
from jetlake.store.steps import Steps

__all__ = ["LeafLink", "LoopError", "ViolationError"]

# Interest of a server that is gone is removed in groups, between which others go first.
_GROUP = 100
# JetStream here acts on what is published to these.
_OBJECTS = b"$O."
_ACTED_ON = (b"$JS.ACK.", b"$JS.FC.", _OBJECTS)
# Tokens of an ack subject before the one that may carry the subject of a stored message.
_ACK_TOKENS = 8


class LoopError(Exception):
    """The other server announces what only this server announces: the servers form a loop."""


class ViolationError(Exception):
    """A leaf node sent what its user may not send; the text says what."""


class LeafLink(RemoteLink):
    """The interest and the messages of one leaf connection, accepted or dialled.

    Args:
        is_hub: this server is the hub of the connection, and enforces the permissions of its user.
        domain: this server's JetStream domain; empty = none.
        report: logs a message that could not be sent.
        deny_imports: subjects of which nothing is taken from the other server.
        deny_exports: subjects of which nothing is sent to it.

    Attributes:
        account: the account here, once the link has joined it.
        in_msgs: messages from the other server.
        in_bytes: the bytes of their headers and payloads.
        info: the other server; all empty before `open`.
    """

    def __init__(
        self,
        *,
        is_hub: bool,
        domain: str,
        report: Callable[[str], None],
        deny_imports: tuple[str, ...] = (),
        deny_exports: tuple[str, ...] = (),
    ) -> None:
        self.account: Account
        self.is_hub = is_hub
        self.info = PeerInfo()
        self.in_msgs = self.in_bytes = 0
        self._announcements: Announcements
        self._deny_imports, self._deny_exports = deny_imports, deny_exports
        self._domain = domain
        self._report = report
        self._rules = LeafRules(is_hub, domain, self.info, deny_imports, deny_exports)
        self._send: Callable[[bytes], None]
        self._remotes: dict[tuple[bytes, bytes], Remote] = {}

    @property
    def peers(self) -> object:
        if not self.is_hub or self.info.is_hub:
            return HUBS
        return ("cluster", self.info.cluster) if self.info.cluster else self

    def join(self, account: Account, announcements: Announcements) -> None:
        """Carry the interest and the messages of this account; called before `open`."""
        self.account, self._announcements = account, announcements

    def open(self, info: PeerInfo, send: Callable[[bytes], None]) -> None:
        """Announce all interest of the account, and every change from now on.

        Args:
            info: the other server's limits, and the permissions.
            send: queues frames for it.
        """
        self.info, self._send = info, send
        self._rules = LeafRules(self.is_hub, self._domain, info, self._deny_imports, self._deny_exports)
        lines = [
            leaf_sub(subject, queue, count)
            for subject, queue, count in self._announcements.all_for(self, is_isolated=info.is_isolated)
            if self._rules.may_announce(subject, queue)
        ]
        self._send(b"".join(lines))
        self._announcements.follow(self, self._announce, is_isolated=info.is_isolated)

    def close(self) -> Steps[None]:
        """Forget the interest of the other server; nothing is sent from the first step on."""
        self.closed = True
        self._announcements.unfollow(self)
        remotes, self._remotes = self._remotes, {}
        return self._forget(list(remotes.values()))

    def _forget(self, remotes: list[Remote]) -> Steps[None]:
        for place, remote in enumerate(remotes, 1):
            self._remove(remote)
            if not place % _GROUP:
                yield

    def _remove(self, remote: Remote) -> None:
        self.account.remove_remote(remote)
        self._announcements.weigh(remote.subject, remote.queue, self, -remote.weight)

    @property
    def interest_count(self) -> int:
        """How many subjects and queue groups the other server has interest in."""
        return len(self._remotes)

    def knows(self, frame: LeafSub) -> bool:
        """Return whether this interest of the other server is registered."""
        return (frame.subject, frame.queue) in self._remotes

    @property
    def subjects(self) -> list[bytes]:
        """The subjects that the other server has interest in."""
        return [subject for subject, _ in self._remotes]

    def client_info(self) -> dict[str, Any]:
        return {"acc": self.account.name, "name": self.info.name, "kind": "Leafnode"}

    # To the other server

    def send(self, data: bytes) -> None:
        self._send(data)

    def _announce(self, subject: bytes, queue: bytes, count: int) -> None:
        if self._rules.may_announce(subject, queue):
            self._send(leaf_sub(subject, queue, count))

    def takes(self, address: bytes) -> bool:
        return not self.closed and self._rules.may_send(address)

    def forward(self, address: bytes, messages: list[Message], queues: list[bytes]) -> int:
        if not self.takes(address):
            return 0
        info = self.info
        frames: list[bytes] = []
        sent = size = 0
        for place, (subject, reply, header, payload) in enumerate(messages, 1):
            length = len(header) + len(payload)
            if length > info.max_payload:
                self._report(
                    f"a message of {length:,} bytes on {address!r} is too large for {_of(self)} and was not sent"
                )
                continue
            if subject != address and reply.startswith(b"$JS.ACK."):
                # The clients there get a stored message under its own subject.
                reply = b"%b@%b" % (reply, subject)
            frames.append(leaf_msg(address, reply, queues, header if info.headers else b"", payload))
            size += length
            sent = place
        if frames:
            self.out_msgs += len(frames)
            self.out_bytes += size
            self._send(b"".join(frames))
        return sent

    # From the other server

    def subscribe(self, frame: LeafSub) -> None:
        """Register interest of the other server; where a hub subscribes to an invalid subject, it is ignored.

        Raises:
            LoopError: the interest is this server's own.
            ViolationError: the user of the leaf node may not subscribe to the subject.
            BadSubjectError: a leaf node subscribes to an invalid subject.
        """
        subject, queue = frame.subject, frame.queue
        if subject == self._announcements.loop_subject:
            raise LoopError
        remote = self._remotes.get((subject, queue))
        if remote is not None:
            change = frame.weight - remote.weight
            remote.weight = frame.weight
            self._announcements.weigh(subject, queue, self, change)
            return
        if not is_valid_subscribe(subject):
            if self.is_hub:
                raise BadSubjectError(_text(subject), "a leaf node subscribed to it")
            return
        if self.is_hub and not has_wildcards(subject) and not self._rules.may_subscribe(subject):
            raise ViolationError(f'Subscription to "{_text(subject)}"')
        if not self._rules.is_pointless(subject):
            self._remotes[subject, queue] = self.account.add_remote(subject, self, queue, frame.weight)
            self._announcements.weigh(subject, queue, self, frame.weight)

    def unsubscribe(self, frame: LeafUnsub) -> None:
        """Remove interest of the other server; unknown interest is ignored."""
        remote = self._remotes.pop((frame.subject, frame.queue), None)
        if remote is not None:
            self._remove(remote)

    def receive(self, frames: list[LeafMsg]) -> None:
        """Deliver messages from the other server to the account's subscribers, and to the queue groups that they name.

        Deliveries of a stream that follow each other on one subject stay together.

        Raises:
            ViolationError: the user of the leaf node may not publish to the subject of a message.
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
            if reply.startswith(refused_replies) or self._is_forged(reply):
                self._report(
                    f"a message of {_of(self)} on {subject!r} named {reply!r} as its reply, and gets no answer"
                )
                reply = b""
            if run and not (stored and subject == address and frame.queues == self.groups):
                self.account.send_to(address, run, self)
                run = []
            address, self.groups = subject, frame.queues
            if self.is_hub and not self._rules.may_publish(subject):
                self.groups = None
                raise ViolationError(f'Publish to "{_text(subject)}"')
            if not self._rules.may_receive(subject):
                continue
            if stored:
                run.append((stored, reply, frame.header, frame.payload))
            else:
                self._publish(subject, reply, frame.header, frame.payload)
        if run:
            self.account.send_to(address, run, self)
        self.groups = None

    def _is_forged(self, reply: bytes) -> bool:
        """Return whether the answer would do, in the name of a client here, what the leaf node may not.

        That is to acknowledge a message, or to change an object store.
        """
        if not self.is_hub or not reply.startswith(_ACTED_ON) or self._rules.may_publish(reply):
            return False
        return reply.startswith(_OBJECTS) or self._announcements.is_answer_here(reply)

    def _publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        mapped: bytes | None = subject
        if self.account.mappings is not None:
            mapped = self.account.mappings.apply(subject)
            if mapped != subject:
                self.groups = (
                    None  # The other server could not know the groups of the subject that this one stands for.
                )
        if mapped is not None:
            self.account.publish(mapped, reply, header, payload, self)


def _of(link: LeafLink) -> str:
    return "the leaf node" if link.is_hub else "the hub"


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "backslashreplace")


def _split_reply(reply: bytes) -> tuple[bytes, bytes]:
    """Split `$JS.ACK.….<pending>@<subject>` into the ack subject and the subject of the stored message, if any."""
    tokens = reply.split(b".", _ACK_TOKENS)
    _, at, subject = tokens[-1].partition(b"@") if len(tokens) > _ACK_TOKENS else (b"", b"", b"")
    if not at:
        return reply, b""
    return reply[: len(reply) - len(subject) - 1], subject
