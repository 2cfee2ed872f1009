"""The interest of the accounts that have leaf connections, counted once for all connections of an account."""

from __future__ import annotations

from jetlake.server.engine.routing.account import Account
from jetlake.server.shell.leaf.announcements import Announcements

__all__ = ["LeafAccounts"]


class LeafAccounts:
    """The announcements of each account, from its first leaf connection on.

    Args:
        system_account: the name of the account whose subjects below `$SYS.` cross as well.
    """

    def __init__(self, system_account: str) -> None:
        self._system_account = system_account
        self._by_name: dict[str, Announcements] = {}

    def of(self, account: Account) -> Announcements:
        """Return the announcements of an account."""
        found = self._by_name.get(account.name)
        if found is None:
            # Every server answers for itself on these; only the system account of a hub asks all.
            skipped = b"" if account.name == self._system_account else b"$SYS."
            found = self._by_name[account.name] = Announcements(account, skipped)
        return found
