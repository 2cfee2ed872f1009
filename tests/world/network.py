"""The network of a world: connections in memory that delay, split, coalesce, stall, cut and reset; names and addresses.

A connection is two pipes. Bytes of a pipe arrive in order, in segments of any size; nothing else is in order. A pipe
has room for so many bytes that nobody has read, after which its writer's own buffer grows.

                transport.write -> out buffer -> Pipe (in flight -> inbox) -> data_received of the other end
"""

import asyncio
import collections
import errno
import os
import socket

__all__ = ["Network"]

_PIPE_BYTES = 128 * 1024
_READ_BYTES = 256 * 1024


def _error(number):
    return OSError(number, os.strerror(number))


class Pipe:
    """One direction of a connection.

    Attributes:
        room: how many more bytes fit into it.
    """

    def __init__(self, network, link, sender, receiver):
        self.network = network
        self.link = link
        self.sender = sender
        self.receiver = receiver
        self.room = network.random.choice((512, 4096, _PIPE_BYTES, _PIPE_BYTES))
        self.in_flight = collections.deque()
        self.last_ns = 0
        self.has_ended = False
        self.is_lost = False

    def send(self, data):
        """Take as much as there is room for, and return how much."""
        taken = min(len(data), self.room)
        if taken and not self.link.is_dead:
            self.room -= taken
            at = 0
            for size in self.network.split(taken):
                self._transmit(bytes(data[at : at + size]))
                at += size
        return taken

    def end(self):
        """Send the end of the stream, behind all that was sent."""
        if not self.has_ended:
            self.has_ended = True
            self._transmit(None)

    def end_early(self):
        """Lose what is under way and all that follows; the receiver is told that the stream has ended."""
        self.in_flight.clear()
        self.has_ended = False  # an end that was under way is lost with the rest
        self.end()
        self.is_lost = True

    def _transmit(self, segment):
        if self.is_lost:
            return
        scheduler = self.network.world.scheduler
        due_ns = max(self.last_ns, scheduler.now_ns + self.network.delay_ns())
        self.last_ns = due_ns
        self.in_flight.append(segment)
        self.network.world.sent(self, segment)
        scheduler.at(due_ns, self._arrive)

    def _arrive(self):
        if self.link.is_dead or not self.in_flight:
            return
        held_ns = self.link.stalled_until_ns
        if held_ns > self.network.world.scheduler.now_ns:
            self.network.world.scheduler.at(held_ns, self._arrive)
            return
        self.receiver.arrived(self.in_flight.popleft())

    def freed(self, size):
        """The receiver has read so many bytes: the sender hears of it in a while."""

        def give():
            self.room += size
            self.sender.has_room()

        self.network.world.scheduler.at(self.network.world.scheduler.now_ns + self.network.delay_ns(), give)


class Link:
    """A connection: its two ends, and what happens to it.

    Attributes:
        stalled_until_ns: nothing arrives before.
        is_dead: nothing arrives any more, and nobody is told (a silent cut), or both have been.
    """

    def __init__(self, network, number, client, server):
        self.network = network
        self.number = number
        self.ends = (client, server)
        self.stalled_until_ns = 0
        self.is_dead = False
        client.link = server.link = self
        client.peer, server.peer = server, client
        client.pipe = Pipe(network, self, client, server)
        server.pipe = Pipe(network, self, server, client)

    def __str__(self):
        return f"#{self.number} {self.ends[0].process.name}>{self.ends[1].process.name}"

    def reset(self, number=errno.ECONNRESET):
        """Both ends learn at once that the connection is gone; what was under way is lost."""
        self.is_dead = True
        for end in self.ends:
            end.failed(_error(number))

    def cut(self):
        """Nothing arrives any more, and nobody is told."""
        self.is_dead = True

    def stall(self, seconds):
        """Nothing arrives for a while."""
        self.stalled_until_ns = self.network.world.scheduler.now_ns + int(seconds * 1e9)


class End:
    """What both kinds of a connection's end have: bytes that have arrived, and where bytes go."""

    link = peer = pipe = None

    def __init__(self, process, address, peer_address):
        self.process = process
        self.address = address
        self.peer_address = peer_address
        self.inbox = bytearray()
        self.has_eof = False
        self.is_gone = False
        process.ends[self] = None

    def arrived(self, segment):
        """Take a segment from the network; None is the end."""
        if self.is_gone:
            if segment is not None:
                self.refuse()
            return
        if segment is None:
            self.has_eof = True
        else:
            self.inbox += segment
        self.readable()

    def refuse(self):
        """Answer bytes for a socket that is closed: the sender's connection is reset."""
        network = self.pipe.network
        network.world.scheduler.at(
            network.world.scheduler.now_ns + network.delay_ns(), lambda: self.peer.failed(_error(errno.ECONNRESET))
        )

    def release(self):
        """The socket is closed, by its owner or because the owner was killed."""
        if not self.is_gone:
            self.is_gone = True
            self.process.ends.pop(self, None)
            if self.inbox:
                self.refuse()
            else:
                self.pipe.end()

    def readable(self):
        raise NotImplementedError

    def has_room(self):
        raise NotImplementedError

    def failed(self, error):
        raise NotImplementedError


class VirtualTransport(End, asyncio.Transport):
    """An end that belongs to an asyncio loop; behaves as a selector loop's transport."""

    def __init__(self, process, address, peer_address):
        asyncio.Transport.__init__(self)
        End.__init__(self, process, address, peer_address)
        self.loop = None
        self.protocol = None
        self.buffer = bytearray()
        self.is_closed = False  # close() was called, or the connection is lost
        self.is_lost = False
        self.is_paused = False
        self.ends_writing = False
        self.is_protocol_paused = False
        self.high, self.low = 64 * 1024, 16 * 1024
        self._reading_due = False

    def make(self, loop, protocol):
        """Tell the protocol of its connection."""
        self.loop, self.protocol = loop, protocol
        protocol.connection_made(self)
        if self.inbox or self.has_eof:
            self.readable()

    async def attach(self, loop, protocol_factory):
        """Connect the protocol, as `create_connection` does; its result."""
        protocol = protocol_factory()
        made = loop.create_future()

        def make():
            self.make(loop, protocol)
            if not made.cancelled():
                made.set_result(None)

        loop.call_soon(make)
        try:
            await made
        except BaseException:
            self.close()
            raise
        return self, protocol

    # From the network; in the scheduler

    def readable(self):
        if self.loop is not None and not self._reading_due and not self.is_paused and not self.is_lost:
            self._reading_due = True
            self.loop.post(self._read)

    def has_room(self):
        if self.loop is not None and self.buffer:
            self.loop.post(self._pump)

    def failed(self, error):
        if self.loop is not None and not self.is_gone:
            self.loop.post(self._fail, error)
        elif self.loop is None:
            self.has_eof = True

    # In the loop

    def _read(self):
        self._reading_due = False
        if self.is_paused or self.is_closed:
            return
        if self.inbox:
            size = self.pipe.network.read_size(min(len(self.inbox), _READ_BYTES))
            data = bytes(self.inbox[:size])
            del self.inbox[:size]
            self.peer.pipe.freed(size)
            try:
                self.protocol.data_received(data)
            except BaseException as error:
                self._fail(error)
                raise
            if self.inbox or self.has_eof:
                self.readable()
        elif self.has_eof and not self.is_closed and not self.protocol.eof_received():
            self.close()

    def _pump(self):
        if self.is_lost:
            return
        if self.buffer:
            taken = self.pipe.send(self.buffer)
            del self.buffer[:taken]
        if self.is_protocol_paused and len(self.buffer) <= self.low:
            self.is_protocol_paused = False
            self.protocol.resume_writing()
        if not self.buffer:
            if self.is_closed:
                self._lose(None)
            elif self.ends_writing:
                self.pipe.end()

    def _fail(self, error):
        if not self.is_lost:
            self.buffer.clear()
            self.is_closed = True
            self._lose(error)

    def _lose(self, error):
        if not self.is_lost:
            self.is_lost = True
            self.loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error):
        self.protocol.connection_lost(error)
        self.release()
        self.protocol = self.loop = None

    # What a protocol calls

    def write(self, data):
        if not data or self.is_lost or self.ends_writing or (self.is_closed and not self.buffer):
            return
        if not self.buffer and self.pipe.network.sends_at_once():
            data = memoryview(data)[self.pipe.send(data) :]
        if not data:
            return
        self.buffer += data
        if self.pipe.room:
            self.loop.post(self._pump)
        if len(self.buffer) > self.high and not self.is_protocol_paused:
            self.is_protocol_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data):
        self.write(b"".join(list_of_data))

    def can_write_eof(self):
        return True

    def write_eof(self):
        if not self.is_closed and not self.ends_writing:
            self.ends_writing = True
            if not self.buffer:
                self.pipe.end()

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            if not self.buffer:
                self._lose(None)

    def abort(self):
        if not self.is_lost:
            self._fail(None)

    def is_closing(self):
        return self.is_closed

    def is_reading(self):
        return not self.is_paused and not self.is_closed

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        if self.is_paused and not self.is_closed:
            self.is_paused = False
            if self.inbox or self.has_eof:
                self.readable()

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = 64 * 1024 if high is None else high
        self.low = self.high // 4 if low is None else low

    def get_write_buffer_size(self):
        return len(self.buffer)

    def get_write_buffer_limits(self):
        return self.low, self.high

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def get_extra_info(self, name, default=None):
        if name == "peername":
            return self.peer_address
        if name == "sockname":
            return self.address
        return default


class VirtualSocket(End):
    """An end that a thread reads and writes by itself: the blocking socket of readers."""

    def __init__(self, process, address, peer_address):
        super().__init__(process, address, peer_address)
        self.timeout_s = None
        self.error = None
        self.waiting = []

    def readable(self):
        self._wake()

    def has_room(self):
        self._wake()

    def failed(self, error):
        self.error = self.error or error
        self._wake()

    def _wake(self):
        waiting, self.waiting = self.waiting, []
        for thread in waiting:
            self.pipe.network.world.scheduler.wake(thread)

    def _wait(self, is_there):
        scheduler = self.pipe.network.world.scheduler
        deadline_ns = None if self.timeout_s is None else scheduler.now_ns + int(self.timeout_s * 1e9)
        scheduler.yield_turn()
        while not is_there() and self.error is None:
            if self.is_gone:
                raise _error(errno.EBADF)
            left_s = None if deadline_ns is None else (deadline_ns - scheduler.now_ns) / 1e9
            if left_s is not None and left_s <= 0:
                raise BlockingIOError(errno.EAGAIN, "not now") if self.timeout_s == 0 else TimeoutError("timed out")
            self.waiting.append(scheduler.current)
            scheduler.wait(left_s)

    def settimeout(self, seconds):
        self.timeout_s = seconds

    def setblocking(self, flag):
        self.timeout_s = None if flag else 0.0

    def setsockopt(self, *_):
        pass

    def fileno(self):
        return -1 if self.is_gone else 1000 + self.link.number

    def getpeername(self):
        return self.peer_address

    def getsockname(self):
        return self.address

    def sendall(self, data):
        data = memoryview(data)
        while data:
            self._wait(lambda: self.pipe.room)
            if self.error is not None:
                raise self.error
            data = data[self.pipe.send(data) :]

    def recv(self, size, flags=0):
        self._wait(lambda: self.inbox or self.has_eof)
        if self.inbox:
            size = self.pipe.network.read_size(min(size, len(self.inbox)))
            data = bytes(self.inbox[:size])
            if not flags & socket.MSG_PEEK:
                del self.inbox[:size]
                self.peer.pipe.freed(size)
            return data
        if self.has_eof:
            return b""
        raise self.error

    def recv_into(self, buffer, size=0):
        data = self.recv(size or len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def shutdown(self, how):
        if how in (socket.SHUT_WR, socket.SHUT_RDWR):
            self.pipe.end()
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self.has_eof = True
            self._wake()

    def close(self):
        self.release()
        self._wake()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Listener:
    """A socket that listens, and the server that accepts from it."""

    def __init__(self, network, process, host, port):
        self.network, self.process = network, process
        self.host, self.port = host, port
        self.loop = None
        self.make_protocol = None
        self.waiting = []

    def getsockname(self):
        return (self.host, self.port)

    def serve(self, loop, make_protocol):
        """Accept from now on."""
        self.loop, self.make_protocol = loop, make_protocol
        for end in self.waiting:
            loop.post(self._accept, end)
        self.waiting.clear()
        return self

    def take(self, end):
        """A connection has arrived."""
        if self.loop is None:
            self.waiting.append(end)
        else:
            self.loop.post(self._accept, end)

    def _accept(self, end):
        if not end.is_gone:
            loop = self.loop or end.process.loops[-1]
            loop.call_soon(end.make, loop, self.make_protocol())

    def close(self):
        self.network.listeners.pop((self.process.machine.address, self.port), None)

    @property
    def sockets(self):
        return [self]

    def is_serving(self):
        return self.loop is not None

    async def wait_closed(self):
        pass


class Network:
    """Machines by address, names, and how bad the day is.

    Attributes:
        names: the addresses of each name.
        parted: pairs of machines between which nothing arrives.
        roughness: 0 for a network that delivers at once and whole, 1 for the worst.
    """

    def __init__(self, world, random):
        self.world = world
        self.random = random
        self.names = {}
        self.listeners = {}
        self.machines = {}
        self.links = []
        self.parted = set()
        self.roughness = 1.0
        self.dns_fails = False
        self._ports = 40_000

    # Chance

    def delay_ns(self):
        """How long the next segment takes."""
        random = self.random
        if random.random() < 0.02 * self.roughness:
            return 1_000_000 + int(random.random() * 199_000_000)
        return 20_000 + int(random.random() * 380_000)

    def split(self, size):
        """Cut so many bytes into segments."""
        random = self.random
        if size < 2 or random.random() >= 0.3 * self.roughness:
            return [size]
        cuts = sorted({random.randrange(1, size) for _ in range(random.choice((1, 1, 2, 5)))})
        return [stop - start for start, stop in zip([0, *cuts], [*cuts, size], strict=True)]

    def read_size(self, size):
        """How much of what is there one read gives."""
        if size > 1 and self.random.random() < 0.1 * self.roughness:
            return self.random.randrange(1, size + 1)
        return size

    def sends_at_once(self):
        """Whether the system's buffer takes a write at once."""
        return self.random.random() >= 0.05 * self.roughness

    # Names and addresses

    def resolve(self, host):
        """Return the addresses of a name, after a while."""
        self.world.scheduler.sleep(self.random.choice((0.0001, 0.0001, 0.001, 0.05 * self.roughness)))
        if self.dns_fails:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if host in self.machines:
            return [host]
        if host in ("127.0.0.1", "localhost"):
            return [self.world.scheduler.current.process.machine.address]
        found = list(self.names.get(host, ()))
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.random.shuffle(found)
        return found

    def listen(self, host, port):
        """Listen on a port of the machine of the process that asks."""
        process = self.world.scheduler.current.process
        if not port:
            self._ports += 1
            port = self._ports
        if (process.machine.address, port) in self.listeners:
            raise _error(errno.EADDRINUSE)
        listener = Listener(self, process, host, port)
        self.listeners[process.machine.address, port] = listener
        return listener

    # Connections

    def _connect(self, make_end, process, address, port, told):
        """Dial; `told` is called in the scheduler with the end, or an error, or never when nobody answers.

        Returns:
            A list with the end, from when the connection is there.
        """
        made = []
        scheduler = self.world.scheduler

        def arrive():
            if frozenset((process.machine.address, address)) in self.parted or not process.is_alive:
                return
            machine = self.machines.get(address)
            if machine is None or not machine.is_on:
                return
            listener = self.listeners.get((address, port))
            if listener is None:
                scheduler.at(scheduler.now_ns + self.delay_ns(), lambda: told(_error(errno.ECONNREFUSED)))
                return
            self._ports += 1
            ours, theirs = (process.machine.address, self._ports), (address, port)
            end = make_end(process, ours, theirs)
            made.append(end)
            accepted = VirtualTransport(listener.process, theirs, ours)
            link = Link(self, len(self.links), end, accepted)
            self.links.append(link)
            self.world.trace(f"connect {link}")
            listener.take(accepted)
            scheduler.at(scheduler.now_ns + self.delay_ns(), lambda: told(end))

        scheduler.at(scheduler.now_ns + self.delay_ns(), arrive)
        return made

    async def dial(self, loop, address, port):
        """Connect for a loop; the new end."""
        dialled = loop.create_future()

        def told(outcome):
            if not dialled.cancelled():
                loop.post(tell, outcome)
            elif not isinstance(outcome, OSError):
                outcome.release()  # At once: the loop may have ended meanwhile.

        def tell(outcome):
            if dialled.cancelled():
                return
            if isinstance(outcome, OSError):
                dialled.set_exception(outcome)
            else:
                dialled.set_result(outcome)

        made = self._connect(VirtualTransport, loop.process, address, port, told)
        try:
            return await dialled
        except asyncio.CancelledError:
            # The connection may be there already, told or not.
            for end in made:
                end.release()
            raise

    def connect_socket(self, host, port, timeout_s):
        """Connect for a thread that waits; the socket."""
        scheduler = self.world.scheduler
        failed = OSError("no address")
        for address in self.resolve(host):
            outcome, thread = [], scheduler.current

            def told(result, outcome=outcome, thread=thread):
                outcome.append(result)
                scheduler.wake(thread)

            self._connect(VirtualSocket, thread.process, address, port, told)
            if not outcome:
                scheduler.wait(timeout_s)
            if not outcome:
                failed = TimeoutError("timed out")
            elif isinstance(outcome[0], OSError):
                failed = outcome[0]
            else:
                return outcome[0]
        raise failed

    # Faults

    def open_links(self):
        """Return the connections that both ends still have."""
        return [link for link in self.links if not link.is_dead and not all(end.is_gone for end in link.ends)]

    def part(self, one, other):
        """Let nothing arrive between two machines; connections between them are as if cut."""
        self.parted.add(frozenset((one.address, other.address)))
        for link in self.open_links():
            if {end.process.machine for end in link.ends} == {one, other}:
                link.cut()

    def heal(self):
        """Let everything arrive again; connections that were cut stay so."""
        self.parted.clear()
        self.dns_fails = False
        self.roughness = 0.2
