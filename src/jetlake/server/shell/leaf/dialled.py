"""The leaf node's end of a leaf connection: the hub's INFO, TLS and CONNECT, up to the link."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError
from jetlake.protocol.encoder import connect
from jetlake.protocol.frames import Frame, Info
from jetlake.server.config.leaf_options import LeafUrl
from jetlake.server.shell.leaf.connection import LeafConnection
from jetlake.server.shell.leaf.hub_info import HubInfo, read_hub_info
from jetlake.server.shell.leaf.link import LeafLink

if TYPE_CHECKING:
    from jetlake.server.shell.leaf.dialer import Dialer

__all__ = ["DialledConnection"]

# How long the hub may take to answer CONNECT with its second INFO.
_ANSWER_S = 2.0
_NOT_A_HUB = "this port is not one for leaf nodes"


class _State(Enum):
    GREETING = "waits for INFO"
    SECURING = "waits for TLS"
    LOGIN = "waits for the answer to CONNECT"
    OPEN = "carries a link"


class DialledConnection(LeafConnection):
    """One connection to a hub.

    Args:
        dialer: has the options of the hub, and is given every INFO of the hub but the first.
        url: where the hub is dialled.
        link: what the connection carries once the hub has accepted the CONNECT.

    Attributes:
        info: the hub's latest INFO.
    """

    def __init__(self, dialer: Dialer, url: LeafUrl, link: LeafLink) -> None:
        self.info = HubInfo()
        self._dialer = dialer
        self._url = url
        self._state = _State.GREETING
        super().__init__(dialer.nodes.services, dialer.nodes.table.take_number(), link, dialer.nodes.sockets)
        self._expect_within(dialer.first_info_timeout_s, self._time_out)

    def _operate(self, frame: Frame) -> None:
        if self._state is _State.SECURING:
            return  # Anybody could have sent it in the clear, and an answer would be written into the handshake.
        if isinstance(frame, Info):
            self._receive_info(frame.json)
        else:
            super()._operate(frame)

    def _refuse_frame(self, frame: Frame) -> None:
        pass  # It is not for this server before the hub has accepted the CONNECT.

    # Handshake

    def _receive_info(self, json: bytes) -> None:
        try:
            self.info = info = read_hub_info(json)
        except JetlakeError as error:
            self._refuse(str(error))
            return
        if self._state is _State.GREETING:
            if not info.accepts_leaves:
                self._refuse(_NOT_A_HUB)
            elif (info.tls_required or self._dialer.wants_tls(self._url)) and not self._is_encrypted():
                self._state = _State.SECURING
                self._expect_within(self._dialer.tls_timeout_s, self._time_out)
                self._engine_loop.start_task(self._secure())
            else:
                self._log_in()
        elif self._state is _State.LOGIN:
            self._link()
            self._dialer.accepted(info)
        elif self._state is _State.OPEN:
            self._dialer.accepted(info)

    def _link(self) -> None:
        self._state = _State.OPEN
        self._open(self.info.peer())

    def _is_encrypted(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    async def _secure(self) -> None:
        """Continue TLS."""
        transport = self._transport
        assert transport is not None
        try:
            loop = self._engine_loop.loop
            context, name = await loop.run_in_executor(None, self._dialer.tls_for, self._url)
            if self.closed:
                return  # TLS on a transport that is closed never begins, and never ends.
            self._reader.start_over()  # bytes over TLS continue nothing that came in the clear
            secured = await loop.start_tls(transport, self, context, server_hostname=name)
        except (OSError, JetlakeError) as error:  # Errors of TLS are OSErrors.
            self._refuse(f"TLS handshake error: {error}")
            return
        if secured is None or self.closed:
            self._refuse("the hub closed the connection in the TLS handshake")
            return
        self._attach(secured)
        self._log_in()

    def _log_in(self) -> None:
        try:
            line = connect(self._dialer.encode_connect(self._url, self.info))
        except JetlakeError as error:
            self._refuse(str(error))
            return
        self.writer.send(line)
        if self.info.info_on_connect:
            self._state = _State.LOGIN
            self._expect_within(_ANSWER_S, self._time_out)
        else:
            self._link()

    def _time_out(self, _now_ns: int) -> None:
        self._refuse(f"the hub did not answer: the connection {self._state.value}")

    def _refuse(self, why: str) -> None:
        if not self.closed:
            self._log.error(f"{self.peer} - Leafnode connection failed: {why}")
            self.drop(why)
