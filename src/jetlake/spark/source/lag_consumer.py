"""A query's position in a limits stream, as a durable consumer that nobody reads from: NATS tools show its lag."""

from __future__ import annotations

import logging

from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import ApiError, ConsumerHeldError, ConsumerNotFoundError, PermissionsError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import AckPolicy, DeliverPolicy
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.retention import CONSUMER_RESET
from jetlake.spark.source.stream_watch import StreamWatch

__all__ = ["LagConsumer"]

_MARK = "jetlake.spark.lag"

_log = logging.getLogger("jetlake.spark")


class LagConsumer:
    """Moves the durable consumer of option `lagConsumer` behind each finished batch: its pending messages are the lag.

    The consumer only shows the position, which is in the checkpoint. So a query goes on when it cannot be moved, and
    says so once.
    """

    def __init__(self, options: SourceOptions, watch: StreamWatch) -> None:
        self._options = options
        self._watch = watch
        self._shown: dict[tuple[str, str], int] = {}
        self._failed = False

    def show(self, stream: str, created: str, sequence: int) -> None:
        """Let the consumer stand before that sequence of the stream.

        Raises:
            ConsumerHeldError: the consumer of that name is somebody else's.
        """
        name = self._options.lag_consumer
        if not name or self._shown.get((stream, created)) == sequence:
            return
        try:
            self._watch.ask(lambda api: self._move(api, stream, name, sequence))
            self._shown[(stream, created)] = sequence
        except (ApiError, PermissionsError) as error:
            if not self._failed:
                _log.warning("consumer %s of stream %s does not show the query's lag: %s", name, stream, error)
            self._failed = True

    def _move(self, api: StreamApi, stream: str, name: str, sequence: int) -> None:
        filters = self._options.subjects
        try:
            # A reset of a consumer that is not there is never answered.
            info = api.consumer_info(stream, name)
        except ConsumerNotFoundError:
            pass
        else:
            if _MARK not in info.config.metadata:
                raise ConsumerHeldError(
                    f"consumer {name} of stream {stream} exists and was not made to show a query's lag: choose another "
                    "name with option lagConsumer"
                )
            if self._watch.version >= CONSUMER_RESET and set(info.config.filters) == set(filters):
                api.reset_consumer(stream, name, sequence)
                return
            api.forget_consumer(stream, name)
        config = ConsumerConfig(
            name=name,
            durable_name=name,
            description="shows how far a Spark query is",
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=sequence,
            ack_policy=AckPolicy.EXPLICIT,
            filter_subject=filters[0] if len(filters) == 1 else "",
            filter_subjects=filters if len(filters) > 1 else (),
            metadata={_MARK: "1"},
        )
        api.create_consumer(stream, config)
