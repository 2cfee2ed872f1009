"""The router of one account's `$JS.…` subjects: acknowledgements, flow control, pulls, direct gets and the API."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from jetlake.errors import api_error
from jetlake.model.ack_subject import NO_DOMAIN, account_hash
from jetlake.server.engine.api.jetstream import JetStream
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber

if TYPE_CHECKING:  # Loaded with the first request, or before by `prepare_jetstream`.
    from jetlake.server.engine.api.api import Api
    from jetlake.server.engine.consumer.consumer import Consumer

__all__ = ["DisabledJetStream", "JetStreamRouter"]

# What the API under the name of a domain consists of.
_API_FAMILIES = (
    b"INFO",
    b"STREAM.>",
    b"CONSUMER.>",
    b"DIRECT.>",
    b"META.>",
    b"SERVER.>",
    b"ACCOUNT.>",
    b"$KV.>",
    b"$OBJ.>",
)


class JetStreamRouter:
    """Routes an account's JetStream subjects.

    Args:
        jetstream: the account's JetStream.
    """

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._api: Api | None = None  # the JSON API, from the first request on
        domain = jetstream.services.options.domain
        self._domain_prefix = f"$JS.{domain}.API.".encode() if domain else b""
        self._domain_token = (domain or NO_DOMAIN).encode()

    @cached_property
    def _hash(self) -> bytes:
        return account_hash(self._jetstream.account.name).encode()

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Handle a message to `$JS.…`; False when no stream, consumer or API verb takes it."""
        if subject.startswith(b"$JS.ACK."):
            return self._receive_ack(subject, reply, payload, origin)
        if subject.startswith(b"$JS.FC."):
            return self._receive_flow_control(subject, header)
        if self._domain_prefix and subject.startswith(self._domain_prefix):
            rest = subject[len(self._domain_prefix) :]
            if rest.startswith((b"$KV.", b"$OBJ.")):
                # Clients with a domain put its API prefix also before the subjects of buckets.
                self._jetstream.account.publish(rest, reply, header, payload, origin)
                return True
            subject = b"$JS.API." + rest
        if not subject.startswith(b"$JS.API."):
            return self._jetstream.transfers.receive(subject, reply, payload)
        self._jetstream.services.store_received()
        if subject.startswith(b"$JS.API.CONSUMER.MSG.NEXT."):
            return self._receive_pull(subject, reply, header, payload, origin)
        if subject.startswith(b"$JS.API.DIRECT.GET."):
            from jetlake.server.engine.api.direct_get import direct_get

            return direct_get(self._jetstream, subject, reply, header, payload)
        if self._api is None:
            from jetlake.server.engine.api.api import Api

            self._api = Api(self._jetstream)
        return self._api.receive(subject, reply, header, payload, origin)

    def subjects(self) -> list[bytes]:
        """List what other servers may want to know: the API under the domain's name, acknowledgements, transfers."""
        found = [self._domain_prefix + family for family in _API_FAMILIES] if self._domain_prefix else []
        for stream in self._jetstream.streams.values():
            for consumer in stream.consumers.values():
                found += consumer.answer_subjects()
        return found + self._jetstream.transfers.subjects()

    def _consumer(self, stream: bytes, consumer: bytes) -> Consumer | None:
        """Return the consumer with these names, as they stand in a subject."""
        found = self._jetstream.streams_by_token.get(stream)
        return found.consumers_by_token.get(consumer) if found is not None else None

    def _receive_ack(self, subject: bytes, reply: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        tokens = subject.split(b".")
        if len(tokens) == 9:
            stream, consumer, deliveries, stream_sequence, consumer_sequence = tokens[2:7]
        elif len(tokens) >= 11 and tokens[2] == self._domain_token and tokens[3] == self._hash:
            stream, consumer, deliveries, stream_sequence, consumer_sequence = tokens[4:9]
        else:
            return False
        found = self._consumer(stream, consumer)
        if found is None:
            return False
        if not (stream_sequence.isdigit() and consumer_sequence.isdigit()):
            return True  # Malformed, and as in nats-server ignored.
        handler = found.ack_handler
        if (
            handler.is_strict
            and payload[:4] != b"+NXT"
            and deliveries.isdigit()
            and handler.receive_late(int(stream_sequence), int(deliveries), reply)
        ):
            return True
        return handler.receive(int(stream_sequence), int(consumer_sequence), reply, payload, origin)

    def receive_acks(self, prefix: bytes, sequences: list[int], consumer_sequences: list[int]) -> bool:
        """Handle plain acknowledgements of the consumer named in the prefix; False when none was handled."""
        tokens = prefix.split(b".")
        if len(tokens) != 5 and (tokens[2] != self._domain_token or tokens[3] != self._hash):
            return False
        found = self._consumer(tokens[-3], tokens[-2])
        return found is not None and found.ack_handler.receive_run(sequences, consumer_sequences)

    def _receive_flow_control(self, subject: bytes, header: bytes) -> bool:
        tokens = subject.split(b".")
        if len(tokens) >= 5:
            found = self._consumer(tokens[2], tokens[3])
            if found is not None:
                return found.delivery.receive_flow_control(subject, header)
        return False

    def _receive_pull(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None
    ) -> bool:
        tokens = subject.split(b".")
        found = self._consumer(tokens[5], tokens[6]) if len(tokens) == 7 else None
        if found is None:
            return False
        if reply:
            found.receive_pull(reply, header, payload, origin)
        return True


class DisabledJetStream:
    """The router of an account without JetStream: refuses every API request (10039)."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """Refuse an API request; False for other subjects, and where the account imports another one's JetStream.

        An account that imports `$JS.API.INFO` has only the part of JetStream that it imports; the rest gets no answer.
        """
        from jetlake.model.api import encode_error, match

        found = match(subject)
        if found is None or found.route.reply is None:
            return False
        if self._account.route(subject).relays or self._account.route(b"$JS.API.INFO").relays:
            return False
        if reply:
            self._account.publish(reply, b"", b"", encode_error(found.route.reply, api_error(10039)))
        return True

    def receive_acks(self, prefix: bytes, sequences: list[int], consumer_sequences: list[int]) -> bool:
        """Take no acknowledgement: there are no consumers."""
        return False

    def subjects(self) -> list[bytes]:
        """List nothing: other servers may have JetStream for this account."""
        return []
