"""The account table: the accounts of a server by name."""

from __future__ import annotations

from random import Random

from jetlake.server.config.options import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, Options
from jetlake.server.engine.routing.account import Account

__all__ = ["AccountTable"]


class AccountTable:
    """The global account, the system account, and those that the options name.

    Args:
        random: picks the members of queue groups.
    """

    def __init__(self, options: Options, random: Random) -> None:
        self.by_name: dict[str, Account] = {}
        self._random = random
        for name in (GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, *(account.name for account in options.accounts)):
            self.get_or_create(name)
        self.global_account = self.by_name[GLOBAL_ACCOUNT]

    def get_or_create(self, name: str) -> Account:
        """Return the account of this name; a reload may name accounts that do not exist yet."""
        account = self.by_name.get(name)
        if account is None:
            account = self.by_name[name] = Account(name, random=self._random)
        return account
