"""Rules of a leaf connection: which subjects cross it, and in which direction."""

from __future__ import annotations

from jetlake.protocol.subjects import is_subset
from jetlake.server.config.leaf_options import LeafRemote
from jetlake.server.config.options import SubjectPermissions
from jetlake.server.shell.access.permissions import SubjectRules
from jetlake.server.shell.leaf.hub_info import HubInfo, SubjectLists

__all__ = ["LeafRules"]

# Each server's own JetStream answers these; over a leaf connection they are reached by the name of a domain.
_LOCAL = ("$JS.API.>", "$KV.>", "$OBJ.>")
# Subjects of the servers' own protocols cross untouched.
_OPAQUE = (b"_R_.", b"_GR_.", b"$GR.", b"$LDS.")


class LeafRules:
    """What crosses a leaf connection.

    Args:
        remote: what the configuration denies.
        domain: this server's JetStream domain; empty = none.
        info: the hub's INFO, with what its user may do.

    Attributes:
        refused_replies: replies with these prefixes are not taken from the hub: JetStream here would act on the answer.
    """

    def __init__(self, remote: LeafRemote, domain: str, info: HubInfo) -> None:
        own = (f"$JS.{domain}.API.>",) if domain else ()
        never_sent = (*_LOCAL, *own, *remote.deny_exports)
        # Two servers of one name would both answer.
        never_wanted = (*_LOCAL, *(own if domain == info.domain else ()), *remote.deny_imports)
        self._never_sent = [subject.encode() for subject in never_sent]
        self._never_wanted = [subject.encode() for subject in never_wanted]
        self._sent = _rules(info.exports, never_sent)
        self._wanted = _rules(info.imports, never_wanted)
        self.refused_replies = tuple(subject.removesuffix(">").encode() for subject in (*_LOCAL, *own))
        self._has_own_rules = bool(info.exports or remote.deny_exports)

    def may_send(self, subject: bytes) -> bool:
        """Return whether a message on this subject is sent to the hub."""
        if not self._has_own_rules and not subject.startswith(b"$"):
            return True
        return subject.startswith(_OPAQUE) or self._sent.permits_literal(subject)

    def may_receive(self, subject: bytes) -> bool:
        """Return whether a message on this subject is accepted from the hub."""
        return subject.startswith(_OPAQUE) or not self._wanted.denies_literal(subject)

    def may_announce(self, subject: bytes, queue: bytes) -> bool:
        """Return whether interest in this subject is announced to the hub."""
        return subject.startswith(_OPAQUE) or self._wanted.permits_pattern(subject, queue)

    def is_pointless(self, subject: bytes) -> bool:
        """Return whether every message that interest in this subject asks for is denied."""
        return any(is_subset(subject, denied) for denied in self._never_sent)


def _rules(lists: SubjectLists | None, denied: tuple[str, ...]) -> SubjectRules:
    given = lists or SubjectLists()
    return SubjectRules(SubjectPermissions(allow=given.allow, deny=(*(given.deny or ()), *denied)))
