"""The publish window: the messages of `publish_async` and `publish_many` between their write and their acknowledgement.

    put, put_message ──► open run ──written──► runs ─────► acknowledged, a range at a time
          │                                      │ split: a refusal, acknowledgements in another order,
          │                                      ▼        a lost connection, half of the time over
          └────────────────written───────► single messages ──► acknowledged, retried, or failed

What is always true:

- A message is in one of three collections: the open run (gathered in this turn of the event loop, not yet numbered),
  `_runs`, or `_singles`. It leaves them only acknowledged or failed. No failure is silent: it is raised where the
  message's `PendingAck` is awaited, or else reported to `on_error` and raised by `complete`.
- Reply subjects end with numbers in the order of publishing. Sorting by them restores that order, in which a new
  connection gets the messages again.
- `_runs` are in the order of publishing, and so in the order of their deadlines: the first one is split first.
- Of `_singles`, the messages without a timeout of their own are in the order of their deadlines: a message that gets a
  new deadline moves to the end. Those with a timeout of their own are also in the heap `_own_deadlines`, whose entries
  may be outdated.
- A message has two halves of its time and is repeated between them if it has an id, by which the stream recognises a
  copy. In a cluster it is then repeated after each half until `ELECTION_S`: a frozen leader takes messages and answers
  none, and the next one takes seconds to be elected.
- `free` is how many messages `put` takes without another check. It is 0 while publishers wait for room, so that a later
  one does not overtake them.
- A refusal is final once no other attempt waits for its answer: a copy that was sent again may be stored.
- After a lost connection, messages with an id are sent again. The others fail: whether they are stored is unknown.
- All of it runs on the event loop's thread, with one timer each for deadlines, retries and room. No future, timer or
  task exists for a message unless it is awaited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from heapq import heappop, heappush

from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Denial, Receiver
from jetlake.client.publish.outgoing_message import OutgoingMessage
from jetlake.client.publish.pending_ack import (
    RUN_MAX,
    PendingAck,
    PublishRun,
    SingleMessage,
    are_acks,
    describe_failures,
    refusal,
)
from jetlake.client.publish.stream_search import RETRY_WAIT_S, StreamSearch
from jetlake.errors import (
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    NoRespondersError,
    PermissionsError,
    PublishTimeoutError,
    PublishWindowError,
)
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

_BLOCK_BYTES = 64 * 1024
# What a frame has beside subject and payload, about; enough that a block has fewer messages than a run may have.
_FRAME_BYTES = 72
# A publisher that fills every gap at once writes small blocks, which cost the server a fifth more: it waits for an
# eighth of the window, but not for long, since the other messages may be stuck.
_ROOM_SHARE = 8
_ROOM_WAIT_S = 0.002
_FAILURES_MAX = 10_000


class PublishWindow(Receiver):
    """The messages of one JetStream context that are under way; receives their acknowledgements.

    Args:
        search: distinguishes a stream without a leader from a missing stream; its API has the connection and how long
            a message may go without acknowledgement.
        messages_max: most messages under way; `room` waits at the limit.
        bytes_max: most bytes under way.

    Attributes:
        free: how many messages may be put without waiting for room.
        is_connected: whether messages go to a server, or are kept for the next one.
    """

    takes_answers = True

    __slots__ = (
        "_ack_timeout_s",
        "_block_bytes",
        "_bytes_max",
        "_connection",
        "_deadline",
        "_deadline_timer",
        "_denied",
        "_doubtful_subjects",
        "_failures",
        "_is_released",
        "_last_frame",
        "_next",
        "_open",
        "_own_deadlines",
        "_payloads",
        "_prefix",
        "_queue",
        "_retry_timer",
        "_retrying",
        "_room_timer",
        "_run_messages",
        "_runs",
        "_runs_size",
        "_search",
        "_searching",
        "_singles",
        "_singles_size",
        "_subjects",
        "_turn_frames",
        "_waiters",
        "free",
        "is_connected",
        "loop",
        "messages_max",
    )

    def __init__(self, search: StreamSearch, *, messages_max: int, bytes_max: int) -> None:
        connection = search.api.connection
        self._prefix = new_inbox(connection.options.inbox_prefix).encode() + b"."
        super().__init__(self._prefix + b"*")
        self._connection = connection
        self._search = search
        self._ack_timeout_s = search.api.timeout_s
        self._bytes_max = bytes_max
        self.loop = connection.loop
        self.messages_max = messages_max
        self.is_connected = connection.is_connected
        self.free = 0
        self._is_released = False
        self._denied = Denial()
        # The open run: columns that grow until it is written, behind the frame that was written last.
        self._turn_frames = connection.turn_frames
        self._open: PublishRun | None = None
        self._subjects: list[bytes] = []
        self._payloads: list[bytes] = []
        self._last_frame = b""
        self._block_bytes = 0
        self._next = 0
        # Messages under way.
        self._singles: dict[bytes, SingleMessage] = {}
        self._singles_size = 0
        self._runs: deque[PublishRun] = deque()
        self._run_messages = 0
        self._runs_size = 0
        # Deadlines.
        self._deadline = 0.0  # Of the messages of the last write.
        self._own_deadlines: list[tuple[float, bytes]] = []
        self._deadline_timer: asyncio.TimerHandle | None = None
        # Retries.
        self._retrying: dict[bytes, None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._doubtful_subjects: dict[bytes, None] = {}
        self._searching: asyncio.Task[None] | None = None
        # Tasks that wait: for a change, and for room in the order of their calls.
        self._waiters: list[asyncio.Future[None]] = []
        self._queue: deque[asyncio.Event] = deque()
        self._room_timer: asyncio.TimerHandle | None = None
        self._failures: list[PendingAck] = []
        connection.subscribe(self)
        self._update_free()

    @property
    def pending(self) -> int:
        """Messages under way."""
        return len(self._singles) + self._run_messages + len(self._payloads)

    @property
    def payload_bytes_max(self) -> int:
        """The maximum bytes of headers and payload that the server accepts."""
        return self._connection.max_payload

    def _is_full(self) -> bool:
        # The bytes of the open run are not counted yet: none is opened near the limit.
        return self.pending >= self.messages_max or self._singles_size + self._runs_size >= self._bytes_max

    # Publishing: the first message of a write is a single one. Plain messages directly behind it join a run, which is
    # encoded when it is written.

    def put(self, subject: bytes, payload: bytes) -> PendingAck | None:
        """Send a message without headers; None while there is no room for it.

        Raises:
            ConnectionClosedError: the connection is closed.
            PermissionsError: the server refuses the inbox of the acknowledgements.
        """
        run = self._open
        free = self.free
        if run is None or free <= 0 or self._turn_frames[-1] is not self._last_frame:
            if free <= 0:
                return None
            run = self._open_run(subject, payload)
            if run is None:
                return self._put_single(SingleMessage(subject, payload))
        payloads = self._payloads
        pending = PendingAck(run, len(payloads))
        self._subjects.append(subject)
        payloads.append(payload)
        self.free = free - 1
        self._block_bytes = block_bytes = self._block_bytes + len(subject) + len(payload) + _FRAME_BYTES
        if block_bytes >= _BLOCK_BYTES:
            self._write()
        return pending

    def put_message(self, message: OutgoingMessage) -> PendingAck | None:
        """Send a message as `put` does."""
        if not message.header and message.timeout_s is None and message.retries is None:
            return self.put(message.subject, message.payload)
        if self.free <= 0:
            return None
        return self._put_single(
            SingleMessage(
                message.subject, message.payload, message.header, message.has_id, message.timeout_s, message.retries
            )
        )

    def put_run(self, run: PublishRun) -> None:
        """Send many messages for which there is room, on a window that is connected; raises as `put` does."""
        self._ensure_inbox()
        self._end_run()
        self._number_run(run, self._half_time())
        data = run.frames()
        self._connection.send_run(data, len(run))
        self._add_run(run)
        self._count_block(len(data))

    def _open_run(self, subject: bytes, payload: bytes) -> PublishRun | None:
        """Begin a run with this message, if it follows another one of the same write; none is begun near a limit."""
        frames = self._turn_frames
        size = self._singles_size + self._runs_size
        if not frames or frames[-1] is not self._last_frame or size + _BLOCK_BYTES > self._bytes_max:
            return None
        self._open = run = PublishRun(self._subjects, self._payloads)
        self._last_frame = encoder.pub(subject, self._prefix, payload)
        self._connection.send_growing(self._last_frame, partial(self._encode_run, run))
        return run

    def _put_single(self, message: SingleMessage) -> PendingAck:
        self._ensure_inbox()
        self._end_run()
        self._next = number = self._next + 1
        reply = self._prefix + b"%d" % number
        frame = message.frame(reply)
        frames = self._turn_frames
        if frames and frames[-1] is self._last_frame:
            frames.append(frame)
        else:
            # Messages of one write have one deadline.
            self._deadline = self._half_time()
            if self.is_connected:
                self._connection.send(frame)
        self._last_frame = frame
        self._singles[reply] = message
        self._singles_size += message.size
        self.free = 0 if self._singles_size + self._runs_size >= self._bytes_max else self.free - 1
        self._count_block(len(frame))
        message.deadline = self._deadline
        if message.timeout_s is not None or message.retries is not None:
            self._restart_deadline(reply, message)
        if self._deadline_timer is None:
            self._sweep_at(self._deadline)
        return PendingAck(message, 0)

    def _encode_run(self, run: PublishRun) -> tuple[bytes, int]:
        """Encode a run that is written now."""
        if run is self._open:
            self._end_run()
        return run.frames(), len(run)

    def _end_run(self) -> None:
        """Close the open run, if there is one."""
        run, self._open = self._open, None
        if run is not None:
            self._subjects, self._payloads = [], []
            self._number_run(run, self._deadline)
            self._add_run(run)

    def _number_run(self, run: PublishRun, deadline: float) -> None:
        # The replies of a run have all digits but the last three in common.
        first = self._next // RUN_MAX + 1
        run.end(self._prefix + b"%d" % first, deadline)
        self._next = first * RUN_MAX + len(run)

    def _add_run(self, run: PublishRun) -> None:
        self._runs.append(run)
        self._run_messages += len(run)
        self._runs_size += run.size
        self._update_free()
        if self._deadline_timer is None:
            self._sweep_at(run.deadline)

    def _count_block(self, size: int) -> None:
        self._block_bytes += size
        if self._block_bytes >= _BLOCK_BYTES:
            self._write()

    def _write(self) -> None:
        """Write before the end of the turn, so that the server works meanwhile; the window bounds what is buffered."""
        self._block_bytes = 0
        self._connection.end_turn()

    def _ensure_inbox(self) -> None:
        """Subscribe the inbox again if the server of an earlier connection refused it."""
        if not self.sid:
            self._denied.check(self._connection.reconnects)
            self._connection.subscribe(self)
            self.is_connected = self._connection.is_connected

    # Room, and waiting for acknowledgements

    async def room(self) -> None:
        """Wait until there is room for a message, behind the publishers that wait already.

        The caller puts its messages before anything else runs.
        """
        if not self._queue and not self._is_full():
            return
        self._connection.end_turn()
        queue = self._queue
        turn = asyncio.Event()
        queue.append(turn)
        try:
            while queue[0] is not turn or self._is_full():
                await turn.wait()
                turn.clear()
        finally:
            queue.remove(turn)
            self._wake_publisher()
            self._update_free()
        self.free = self.messages_max - self.pending  # For the caller, also while others wait behind it.

    def _wake_publisher(self) -> None:
        """Wake the first publisher that waits, if there is room."""
        if self._queue and not self._is_full():
            self._queue[0].set()

    def _update_free(self) -> None:
        is_closed = self._queue or self._singles_size + self._runs_size >= self._bytes_max
        self.free = 0 if is_closed else self.messages_max - self.pending

    async def changed(self) -> None:
        """Wait until messages are acknowledged or failed."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        """Wake all waiting tasks."""
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None
        self._wake_publisher()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._update_free()
        if self._is_released and not self.pending:
            self._sweep_at(None)
            self._connection.unsubscribe(self)

    def _wake_with_room(self) -> None:
        """Wake waiting tasks once there is enough room, or nothing under way; a little room waits for more."""
        count = self.pending
        if not count:
            self._wake()
        elif (self._waiters or self._queue) and not self._is_full():
            if count <= self.messages_max - max(1, self.messages_max // _ROOM_SHARE):
                self._wake()
            elif self._room_timer is None:
                self._room_timer = self.loop.call_later(_ROOM_WAIT_S, self._wake)

    async def complete(self) -> None:
        """Wait until every message under way is acknowledged or failed.

        Raises:
            PublishWindowError: some failed since the last call, and their `PendingAck`s were not awaited.
        """
        await self.await_answers()
        failures, self._failures = self._failures, []
        described = describe_failures([pending for pending in failures if not pending.is_observed])
        if described:
            raise PublishWindowError(described)

    async def await_answers(self) -> None:
        # Only for the messages that are under way now: other tasks may continue to publish.
        self._connection.end_turn()
        singles, runs = [PendingAck(one, 0) for one in self._singles.values()], list(self._runs)
        for run in runs:
            while not run.is_over:
                await self.changed()
        for pending in (*singles, *(one for run in runs for _, one in run.pendings)):
            while not pending.is_done:
                await self.changed()

    def release(self) -> None:
        """End the subscription as soon as nothing is under way: the context is gone, and with it all publishers."""
        self._is_released = True
        self._wake()

    # Acknowledgements

    def receive(self, messages: list[Message]) -> None:
        if self._run_messages and not all(are_acks(one.payload) for one in messages):
            self._split_runs()
        failed: list[PendingAck] = []
        stored = [message for message in messages if not self._is_refused(message, failed)]
        self._acknowledge([message.raw_subject for message in stored], [message.payload for message in stored])
        self._report(failed)

    def receive_answers(self, subjects: list[bytes], payloads: list[bytes]) -> None:
        # One search in all answers: an acknowledgement is decoded only when it is asked for.
        if are_acks(b"".join(payloads), len(payloads)):
            self._acknowledge(subjects, payloads)
        else:
            super().receive_answers(subjects, payloads)

    def _acknowledge(self, replies: list[bytes], answers: list[bytes]) -> None:
        if self._run_messages:
            replies, answers = self._acknowledge_runs(replies, answers)
        pop = self._singles.pop
        for reply, answer in zip(replies, answers, strict=True):
            message = pop(reply, None)
            if message is not None:
                self._singles_size -= message.size
                message.answer = answer
                message.release()
        self._update_free()
        self._wake_with_room()

    def _acknowledge_runs(self, replies: list[bytes], answers: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Acknowledge messages of runs, and return the replies and answers that are not next in a run."""
        runs = self._runs
        others: list[int] = []
        start, count = 0, len(replies)
        while runs and start < count:
            run = runs[0]
            size = run.size
            stored = run.acknowledge(replies, answers, start)
            if not stored:
                others.append(start)
                start += 1
                continue
            start += stored
            self._run_messages -= stored
            self._runs_size -= size - run.size
            if run.is_over:
                runs.popleft()
        others += range(start, count)
        if not others:
            return [], []
        replies = [replies[position] for position in others]
        if not self._singles.keys() >= set(replies):
            self._split_runs()  # Streams that share a run acknowledge it in another order.
        return replies, [answers[position] for position in others]

    def _split_runs(self, *, is_late: bool = False, until: float | None = None) -> None:
        """Make single messages of the runs, or only of those with a deadline up to a time.

        Args:
            is_late: half of their time is over.
        """
        runs = self._runs
        deadline = self._half_time()
        while runs and (until is None or runs[0].deadline <= until):
            run = runs.popleft()
            self._run_messages -= len(run) - run.stored
            self._runs_size -= run.size
            self._singles_size += run.split(self._singles, deadline, is_late=is_late)

    def _split_all(self) -> None:
        """Make single messages of all runs, the open one included."""
        if self._payloads:
            self._connection.end_turn()
        self._split_runs()
        self._update_free()

    # Refusals and retries

    def _is_refused(self, message: Message, failed: list[PendingAck]) -> bool:
        """Read an answer that may be a refusal; a message that is not retried is added to `failed`."""
        if are_acks(message.payload):
            return False
        reply = message.raw_subject
        single = self._singles.get(reply)
        error = None if single is None else refusal(single.raw_subject.decode("utf-8", "replace"), message)
        if single is None or error is None:
            return False
        single.answers_due -= 1
        if single.may_be_retried(error):
            self._retry(reply, single)
        elif single.answers_due > 0:
            # The message was sent again meanwhile: that copy may be stored.
            single.refusal = error
        else:
            failed.append(self._give_up(reply, error))
        return True

    def _retry(self, reply: bytes, message: SingleMessage) -> None:
        """Send a refused message again soon, together with others.

        Each attempt has the whole timeout, unless the publisher has set one for the message.
        """
        message.attempts += 1
        if message.retries is not None or message.timeout_s is None:
            self._singles[reply] = self._singles.pop(reply)
            self._restart_deadline(reply, message)
        self._retrying[reply] = None
        if self._retry_timer is None:
            self._retry_timer = self.loop.call_later(RETRY_WAIT_S, self._send_retries)
        if message.needs_search:
            self._doubtful_subjects[message.raw_subject] = None
            if self._searching is None:
                self._searching = self.loop.create_task(self._find_streams())

    def _send_retries(self) -> None:
        self._retry_timer = None
        retrying, self._retrying = self._retrying, {}
        # Without a connection the next one gets all messages.
        if self.is_connected and not self._connection.is_closed:
            for reply in sorted(retrying, key=self._number):
                message = self._singles.get(reply)
                if message is not None:
                    message.answers_due += 1
                    self._connection.send(message.frame(reply))

    async def _find_streams(self) -> None:
        """Fail the messages that no stream captures; those whose stream only waits for a leader are sent again."""
        try:
            while self._doubtful_subjects:
                subject, _ = self._doubtful_subjects.popitem()
                if await self._search.finds(subject) is False:
                    singles = self._singles.items()
                    lost = [reply for reply, one in singles if one.raw_subject == subject and one.needs_search]
                    self._fail(lost, NoRespondersError(subject.decode("utf-8", "replace")))
        finally:
            self._searching = None

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        self._split_all()
        self._fail([reply for reply, message in self._singles.items() if message.raw_subject == subject], error)

    def _number(self, reply: bytes) -> int:
        """Return the number of a message in the order of publishing."""
        return int(reply[len(self._prefix) :])

    # Deadlines

    def _half_time(self) -> float:
        """Return when half of the time of a message that is sent now is over."""
        return self.loop.time() + self._ack_timeout_s / 2

    def _sweep_at(self, at: float | None) -> None:
        """Check the deadlines at this time and not before; never when None."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_timer = None if at is None else self.loop.call_at(at, self._sweep)

    def _restart_deadline(self, reply: bytes, message: SingleMessage) -> None:
        """Start the time of a message that is sent now; a timeout of its own may need an earlier timer."""
        message.halves = 0
        self._start_half(reply, message)
        timer = self._deadline_timer
        if message.timeout_s is not None and (timer is None or timer.when() > message.deadline):
            self._sweep_at(message.deadline)

    def _start_half(self, reply: bytes, message: SingleMessage) -> None:
        message.deadline = self.loop.time() + message.half_s(self._ack_timeout_s)
        if message.timeout_s is not None:
            heappush(self._own_deadlines, (message.deadline, reply))

    def _sweep(self) -> None:
        """Repeat the messages whose half is over, and fail those whose time is over."""
        self._deadline_timer = None
        if not self.is_connected:
            return  # Without a server nothing is overdue; a new connection starts the deadlines again.
        now = self.loop.time()
        singles = self._singles
        count = len(singles)
        self._split_runs(is_late=True, until=now)
        is_overdue = len(singles) > count
        overdue = []
        next_at = None
        for reply, message in singles.items():
            if message.timeout_s is None:
                if message.deadline > now:
                    next_at = message.deadline
                    break
                overdue.append(reply)
        own = self._own_deadlines
        while own and (own[0][0] <= now or own[0][1] not in singles):
            deadline, reply = heappop(own)
            if reply in singles and singles[reply].deadline == deadline:
                overdue.append(reply)
        is_overdue = is_overdue or bool(overdue)
        self._time_out(overdue)
        self._repeat([reply for reply in overdue if reply in singles])
        if next_at is None and singles:
            next_at = now + self._ack_timeout_s / 2
        run_at = self._runs[0].deadline if self._runs else None
        times = [at for at in (next_at, run_at, own[0][0] if own else None) if at is not None]
        if times:
            self._sweep_at(max(min(times), now + 0.001))
        if is_overdue:
            self._connection.suspect()

    def _time_out(self, replies: list[bytes]) -> None:
        """Fail the messages whose last half is over."""
        is_clustered = bool(self._connection.info.cluster)
        by_time: dict[float, list[bytes]] = {}
        for reply in replies:
            message = self._singles[reply]
            time_s = message.time_s(self._ack_timeout_s, is_clustered=is_clustered)
            if (message.halves + 1) * message.half_s(self._ack_timeout_s) >= time_s:
                by_time.setdefault(time_s, []).append(reply)
        for time_s, late in by_time.items():
            self._fail(late, PublishTimeoutError(f"no acknowledgement within {time_s:g} s"))

    def _repeat(self, replies: list[bytes]) -> None:
        """Begin the next half of messages, and send those with an id again.

        The server of a cluster that dies loses the messages it has not passed on, and their publisher is not notified.
        """
        for reply in replies:
            self._singles[reply] = message = self._singles.pop(reply)
            message.halves += 1
            self._start_half(reply, message)
            if message.has_id and reply not in self._retrying:
                # sometimes: an unanswered message is sent again
                message.answers_due += 1
                self._connection.send(message.frame(reply))

    # The connection

    def disconnected(self) -> None:
        self.is_connected = False
        self._connection.forget_unsent(self._prefix)
        self._split_runs()
        self._fail(
            [reply for reply, message in self._singles.items() if not message.has_id],
            DisconnectedError(
                "the connection was lost before the acknowledgement; the message may or may not be stored"
            ),
        )

    def reconnected(self) -> None:
        self.is_connected = True
        self._own_deadlines.clear()
        self._retrying.clear()
        self._fail_larger()
        # In the order of publishing, which later attempts have changed.
        for reply in sorted(self._singles, key=self._number):
            # sometimes: a window is sent again after a reconnect
            self._singles[reply] = message = self._singles.pop(reply)
            self._restart_deadline(reply, message)
            message.answers_due = 1  # Nothing that was sent before is answered here.
            message.refusal = None
            self._connection.send(message.frame(reply))
        if self._singles and self._deadline_timer is None:
            self._sweep_at(self._half_time())

    def _fail_larger(self) -> None:
        """Fail the messages that are larger than this server takes: it would close every connection for them."""
        failed = []
        for reply, message in list(self._singles.items()):
            try:
                self._connection.check_size(len(message.header) + len(message.payload))
            except InvalidOptionError as error:
                failed.append(self._give_up(reply, error))
        if failed:
            self._report(failed)
            self._wake()

    def ended(self, error: Exception | None) -> None:
        self.is_connected = False
        self.sid = b""
        self._denied.take(error, self._connection.reconnects)
        self._sweep_at(None)
        if self._searching is not None:
            self._searching.cancel()
        self._split_all()
        closed = ConnectionClosedError("the connection was closed before the acknowledgement")
        self._fail(list(self._singles), error or closed)

    # Failures

    def _fail(self, replies: list[bytes], error: Exception) -> None:
        """Fail single messages, and wake the tasks that wait."""
        self._report([self._give_up(reply, error) for reply in replies])
        self._wake()

    def _give_up(self, reply: bytes, error: Exception) -> PendingAck:
        message = self._singles.pop(reply)
        self._singles_size -= message.size
        if message.refusal is not None and isinstance(error, PublishTimeoutError):
            error = PublishTimeoutError(f"{error}; another attempt was refused: {message.refusal}")
        message.error = error
        message.release()
        return PendingAck(message, 0)

    def _report(self, failed: Iterable[PendingAck]) -> None:
        """Report failed messages that are not awaited, and keep the newest for `complete`."""
        unobserved = [pending for pending in failed if not pending.is_observed]
        if unobserved:
            self._failures = (self._failures + unobserved)[-_FAILURES_MAX:]
            self._connection.signal(PublishWindowError(describe_failures(unobserved)))

    def disown(self, pendings: list[PendingAck]) -> None:
        """Report the failures of messages, past and future, whose publisher no longer waits for them."""
        for pending in pendings:
            pending.observe(is_observed=False)
        self._report([pending for pending in pendings if pending.error is not None])
