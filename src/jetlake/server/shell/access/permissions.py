"""Permissions: which subjects a user may publish to and receive from."""

from __future__ import annotations

from collections.abc import Callable

from jetlake.protocol.subjects import has_wildcards, is_subset, overlaps
from jetlake.server.config.options import Permissions, ResponsePermission, SubjectPermissions
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.sublist import Sublist

__all__ = ["PermissionCheck", "SubjectRules"]

# Cached decisions per subject, and remembered replies; full tables are emptied, or lose their oldest entry.
_ANSWERS_MAX = 1024
_REPLIES_MAX = 4096


class SubjectRules:
    """An allow list and a deny list: patterns, each with the queue group that it concerns, if any."""

    def __init__(self, permissions: SubjectPermissions) -> None:
        self.allow = None if permissions.allow is None else [_rule(text) for text in permissions.allow]
        self.deny = [_rule(text) for text in permissions.deny]
        self._allowed: Sublist[bytes] = _sublist(self.allow or [])
        self._denied: Sublist[bytes] = _sublist(self.deny)

    def permits_literal(self, subject: bytes) -> bool:
        """Return whether a message on this subject is permitted."""
        if self.allow is not None and not self._allowed.match(subject):
            return False
        return not self._denied.match(subject)

    def denies_literal(self, subject: bytes) -> bool:
        """Return whether the deny list alone forbids this subject."""
        return bool(self._denied.match(subject))

    def permits_pattern(self, pattern: bytes, queue: bytes) -> bool:
        """Return whether a subscription on this pattern is permitted: allowed, and not denied."""
        if self.allow is not None and not any(_covers(rule, pattern, queue) for rule in self.allow):
            return False
        return not any(_covers(rule, pattern, queue) for rule in self.deny)

    def denies_part_of(self, pattern: bytes) -> bool:
        """Return whether some of the subjects that the pattern matches are denied."""
        return has_wildcards(pattern) and any(overlaps(subject, pattern) for subject, queue in self.deny if not queue)


def _rule(text: str) -> tuple[bytes, bytes]:
    subject, _, queue = " ".join(text.split()).encode().partition(b" ")
    return subject, queue


def _sublist(rules: list[tuple[bytes, bytes]]) -> Sublist[bytes]:
    sublist: Sublist[bytes] = Sublist()
    for subject, queue in rules:
        if not queue:
            sublist.insert(subject, subject)
    return sublist


def _covers(rule: tuple[bytes, bytes], pattern: bytes, queue: bytes) -> bool:
    subject, group = rule
    if group and not (queue and is_subset(queue, group)):
        return False
    return is_subset(pattern, subject)


class PermissionCheck:
    """The permissions of one connection, with the reply subjects that it may publish to.

    Args:
        permissions: the user's, from the configuration.
        now_ns: the time, for response permissions that expire.
    """

    def __init__(self, permissions: Permissions, clock: Clock) -> None:
        self._publish = SubjectRules(permissions.publish) if permissions.publish is not None else None
        self._subscribe = SubjectRules(permissions.subscribe) if permissions.subscribe is not None else None
        self._responses: ResponsePermission | None = permissions.responses
        self._clock = clock
        self._answers: dict[bytes, bool] = {}
        self._replies: dict[bytes, tuple[int, int]] = {}  # reply -> when its message was delivered, answers so far

    def may_publish(self, subject: bytes) -> bool:
        """Return whether the user may publish to this subject."""
        if self._publish is None:
            return True
        allowed = self._answers.get(subject)
        if allowed is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            allowed = self._answers[subject] = self._publish.permits_literal(subject)
        return allowed or self._may_answer(subject)

    def may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        """Return whether the user may subscribe to this pattern, in this queue group."""
        return self._subscribe is None or self._subscribe.permits_pattern(subject, queue)

    def filter_for(self, pattern: bytes) -> Callable[[bytes, bytes], bool] | None:
        """Return the check for each delivery to a subscription on this pattern; None = no check is needed.

        The check says whether the message may be delivered, and remembers its reply for response permissions.
        """
        filters = self._subscribe is not None and self._subscribe.denies_part_of(pattern)
        if not filters and self._responses is None:
            return None
        return self._admit if filters else self._remember

    def _admit(self, subject: bytes, reply: bytes) -> bool:
        if self._subscribe is not None and self._subscribe.denies_literal(subject):
            return False
        return self._remember(subject, reply)

    def _remember(self, subject: bytes, reply: bytes) -> bool:
        if reply and self._responses is not None:
            if len(self._replies) >= _REPLIES_MAX:
                del self._replies[next(iter(self._replies))]
            self._replies[reply] = (self._clock.now_ns(), 0)
        return True

    def _may_answer(self, subject: bytes) -> bool:
        rule = self._responses
        remembered = self._replies.get(subject)
        if rule is None or remembered is None:
            return False
        delivered_ns, answers = remembered
        if rule.expires_s > 0 and self._clock.now_ns() - delivered_ns > rule.expires_s * 1e9:
            del self._replies[subject]
            return False
        if rule.max >= 0 and answers + 1 >= rule.max:
            # The last one allowed, or more than was ever allowed.
            del self._replies[subject]
        else:
            self._replies[subject] = (delivered_ns, answers + 1)
        return rule.max < 0 or answers < rule.max
