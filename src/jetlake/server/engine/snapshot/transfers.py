"""The transfers under way: archives that are sent or received, by the id in their subjects."""

from __future__ import annotations

from typing import Protocol

from jetlake.errors import ApiError, api_error
from jetlake.server.engine.routing.account import Account

# Each transfer holds a window of chunks in memory.
_TRANSFERS_MAX = 32

_PREFIXES = (b"$JS.SNAPSHOT.ACK.", b"$JS.SNAPSHOT.RESTORE.")


class Transfer(Protocol):
    """An archive on its way."""

    def receive(self, reply: bytes, payload: bytes) -> None:
        """Handle a message of the client: an acknowledgement, or the next chunk."""
        ...

    def cancel(self) -> None:
        """End the transfer because the server stops."""
        ...


class Transfers:
    """The transfers of one account.

    Args:
        account: announces to other servers which subjects of transfers are received here.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._transfers: dict[bytes, Transfer] = {}

    def check_room(self, code: int) -> None:
        """Check that another transfer may begin.

        Raises:
            ApiError: too many are under way.
        """
        if len(self._transfers) >= _TRANSFERS_MAX:
            raise _too_many(code)

    def begin(self, transfer_id: bytes, transfer: Transfer) -> None:
        """Register a transfer."""
        self._transfers[transfer_id] = transfer
        for subject in _subjects(transfer_id):
            self._account.announce(subject)

    def end(self, transfer_id: bytes) -> None:
        """Unregister a transfer; its subjects have no recipient any more."""
        if self._transfers.pop(transfer_id, None) is not None:
            for subject in _subjects(transfer_id):
                self._account.retract(subject)

    def subjects(self) -> list[bytes]:
        """List the subjects of the transfers under way."""
        return [subject for transfer_id in self._transfers for subject in _subjects(transfer_id)]

    def receive(self, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """Handle a message to `$JS.SNAPSHOT.…`; False when no transfer takes it."""
        for prefix in _PREFIXES:
            if subject.startswith(prefix):
                tokens = subject[len(prefix) :].split(b".")
                transfer = self._transfers.get(tokens[1]) if len(tokens) > 1 else None
                if transfer is not None:
                    transfer.receive(reply, payload)
                    return True
        return False

    def close(self) -> None:
        """End all transfers because the server stops."""
        for transfer in tuple(self._transfers.values()):
            transfer.cancel()
        self._transfers.clear()


def _subjects(transfer_id: bytes) -> tuple[bytes, bytes]:
    """Return the subjects of a transfer: of its chunks, and of their acknowledgements."""
    return b"$JS.SNAPSHOT.RESTORE.*." + transfer_id, b"$JS.SNAPSHOT.ACK.*.%b.>" % transfer_id


def _too_many(code: int) -> ApiError:
    return api_error(code, err=f"{_TRANSFERS_MAX} backups and restores are under way")
