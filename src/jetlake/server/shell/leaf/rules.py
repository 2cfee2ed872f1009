"""Rules of a leaf connection: which subjects cross it, and in which direction."""

from __future__ import annotations

from jetlake.protocol.subjects import is_subset
from jetlake.server.config.options import SubjectPermissions
from jetlake.server.shell.access.permissions import SubjectRules
from jetlake.server.shell.leaf.peer_info import PeerInfo

__all__ = ["LeafRules"]

# Each server's own JetStream answers these; over a leaf connection they are reached by the name of a domain.
_LOCAL = ("$JS.API.>", "$KV.>", "$OBJ.>")
# Subjects of the servers' own protocols: answers to requests of other accounts, answers over gateways, and the mark of
# each server. Whatever its user may do, a leaf node may answer, and announce all but the first.
_ANSWERS = (b"_R_.", b"_GR_.")
_GATEWAY_ANSWER = b"_GR_."
_PROTOCOL = (_GATEWAY_ANSWER, b"$GR.", b"$LDS.")


class LeafRules:
    """What crosses a leaf connection.

    Args:
        is_hub: this server is the hub of the connection.
        domain: this server's JetStream domain; empty = none.
        info: the other server, and what the user of the connection may do.
        deny_imports: subjects of which nothing is taken from the other server.
        deny_exports: subjects of which nothing is sent to it.

    Attributes:
        refused_replies: replies with these prefixes are not taken from there: JetStream here would act on the answer.
    """

    def __init__(
        self,
        is_hub: bool,
        domain: str,
        info: PeerInfo,
        deny_imports: tuple[str, ...] = (),
        deny_exports: tuple[str, ...] = (),
    ) -> None:
        own = (f"$JS.{domain}.API.>",) if domain else ()
        never_sent = (*_LOCAL, *own, *deny_exports)
        # Two servers of one name would both answer.
        never_wanted = (*_LOCAL, *(own if domain == info.domain else ()), *deny_imports)
        self._never_sent = [subject.encode() for subject in never_sent]
        self._sent = _rules(info.exports, never_sent)
        self._wanted = _rules(info.imports, never_wanted)
        self._exports = SubjectRules(info.exports)
        self._imports = SubjectRules(info.imports)
        self.refused_replies = tuple(subject.removesuffix(">").encode() for subject in (*_LOCAL, *own))
        self._is_hub = is_hub
        self._freely_announced = (*_ANSWERS, *_PROTOCOL) if is_hub else _PROTOCOL
        self._has_own_rules = info.exports != SubjectPermissions() or bool(deny_exports)

    def may_send(self, subject: bytes) -> bool:
        """Return whether a message on this subject is sent to the other server."""
        if not self._has_own_rules and not subject.startswith(b"$"):
            return True
        if not self._is_hub and subject.startswith((*_ANSWERS, *_PROTOCOL)):
            return True
        if subject.startswith(_GATEWAY_ANSWER):
            subject = subject.split(b".", 3)[-1]  # behind it, and the hashes of a cluster and a server
        return self._sent.permits_literal(subject)

    def may_receive(self, subject: bytes) -> bool:
        """Return whether a message on this subject is accepted from the other server."""
        return subject.startswith((*_ANSWERS, *_PROTOCOL)) or not self._wanted.denies_literal(subject)

    def may_announce(self, subject: bytes, queue: bytes) -> bool:
        """Return whether interest in this subject is announced to the other server."""
        return subject.startswith(self._freely_announced) or self._wanted.permits_pattern(subject, queue)

    def is_pointless(self, subject: bytes) -> bool:
        """Return whether every message that interest in this subject asks for is denied."""
        return any(is_subset(subject, denied) for denied in self._never_sent)

    # What a hub enforces on its leaf nodes

    def may_publish(self, subject: bytes) -> bool:
        """Return whether the user of the connection may publish to this subject."""
        return subject.startswith(_ANSWERS) or self._imports.permits_literal(subject)

    def may_subscribe(self, subject: bytes) -> bool:
        """Return whether the user of the connection may subscribe to this literal subject."""
        return subject.startswith(_PROTOCOL) or self._exports.permits_literal(subject)


def _rules(given: SubjectPermissions, denied: tuple[str, ...]) -> SubjectRules:
    return SubjectRules(SubjectPermissions(allow=given.allow, deny=(*given.deny, *denied)))
