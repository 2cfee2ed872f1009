"""Whole sessions of a client over a socket, mutated, against a server with a store: it must find no internal error.

A session is lines of fields, from which frames with the right lengths are made, so that a mutation reaches what handles
the frame rather than the parser alone:

    P subject TAB reply TAB payload            PUB
    H subject TAB reply TAB header TAB payload HPUB
    S subject TAB queue                        SUB
    U count                                    UNSUB
    R anything                                 as it is
"""

import asyncio
import atexit
import shutil
import socket
import tempfile
import threading

from jetlake.server.config.options import Options
from jetlake.server.shell.server import Server

__all__ = ["SESSIONS", "run_session"]

# What a session may wait for its last answer; one that the server ends is over at once.
_PATIENCE_S = 2
# A store that has grown is left behind for a new one.
_SESSIONS_PER_SERVER = 2000


class _Log:
    """Keeps the errors."""

    def __init__(self):
        self.errors = []

    def error(self, text):
        if "internal error" in text:
            self.errors.append(text)

    def __getattr__(self, _name):
        return lambda *_: None


class _ServerThread:
    """A server with a loop in a thread of its own."""

    def __init__(self):
        self.log = _Log()
        self.age = 0
        self._folder = tempfile.mkdtemp(prefix="jetlake-fuzz-")
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.server = self._run(self._start())
        atexit.register(self.stop)

    async def _start(self):
        server = Server(self._folder, options=Options(trace=True), jetstream=True, log=self.log)
        await server.start()
        return server

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self):
        atexit.unregister(self.stop)
        self._run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        shutil.rmtree(self._folder, ignore_errors=True)


_running = None


def _server():
    global _running
    if _running is not None and _running.age >= _SESSIONS_PER_SERVER:
        _running.stop()
        _running = None
    if _running is None:
        _running = _ServerThread()
    _running.age += 1
    return _running


def _token(data):
    """A subject or name that cannot break the line that it stands in."""
    return data.translate(None, b" \t\r\n\f\v\0") or b"x"


def frames(data):
    """The bytes that a client would send."""
    out = [b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n', b"SUB _INBOX.> 1\r\n"]
    for number, line in enumerate(data.split(b"\n")):
        kind, fields = line[:1], [*line[2:].split(b"\t"), b"", b"", b""]
        subject, reply = _token(fields[0]), _token(fields[1]) if fields[1] else b""
        if kind == b"P":
            payload = fields[2]
            out.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))
        elif kind == b"H":
            header, payload = b"NATS/1.0" + fields[2].replace(b"|", b"\r\n") + b"\r\n\r\n", fields[3]
            sizes = (subject, reply, len(header), len(header) + len(payload), header, payload)
            out.append(b"HPUB %b %b %d %d\r\n%b%b\r\n" % sizes)
        elif kind == b"S":
            out.append(b"SUB %b %b %d\r\n" % (subject, reply, number + 2))
        elif kind == b"U":
            out.append(b"UNSUB %d %b\r\n" % (number, subject))
        elif kind == b"R":
            out.append(line[2:] + b"\r\n")
    out.append(b"PING\r\n")
    return b"".join(out)


def run_session(data):
    """Play the session; wait until the server has taken all of it, or has hung up."""
    running = _server()
    with socket.create_connection(("127.0.0.1", running.server.port), timeout=_PATIENCE_S) as connection:
        sender = threading.Thread(target=_send, args=(connection, frames(data)))
        sender.start()
        try:
            tail = b""
            while b"PONG\r\n" not in tail and (read := connection.recv(65536)):
                tail = tail[-8:] + read
        except (ConnectionError, TimeoutError):
            pass  # cut off, or a frame that announced more than followed
        sender.join()
    errors, running.log.errors = running.log.errors, []
    assert not errors, errors


def _send(connection, data):
    try:
        connection.sendall(data)
    except OSError:
        pass  # The server hung up.


_SETUP = (
    b'P $JS.API.STREAM.CREATE.S\t_INBOX.1\t{"name":"S","subjects":["s.>"],"allow_direct":true,"allow_rollup_hdrs":true,'
    b'"allow_msg_ttl":true,"max_msgs":500}\n'
    b"P $JS.API.CONSUMER.CREATE.S.c\t_INBOX.2\t"
    b'{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit"}}\n'
)

SESSIONS = [
    _SETUP + b"P s.1\t_INBOX.3\thello\n"
    b"H s.2\t_INBOX.4\t|Nats-Msg-Id: one|a: b\thello\n"
    b"H s.2\t_INBOX.5\t|Nats-Expected-Last-Sequence: 2|Nats-TTL: 5s\thello\n"
    b"H s.3\t_INBOX.5\t|Nats-Rollup: sub\thello\n"
    b'P $JS.API.CONSUMER.MSG.NEXT.S.c\t_INBOX.6\t{"batch":5,"no_wait":true}\n'
    b"P $JS.ACK.S.c.1.1.1.1700000000000000000.0\t_INBOX.7\t+ACK\n"
    b'P $JS.ACK.S.c.1.2.2.1700000000000000000.0\t\t-NAK {"delay":1000}\n'
    b"P $JS.ACK.S.c.1.3.3.1700000000000000000.0\t_INBOX.8\t+TERM why\n"
    b"P $JS.ACK.S.c.1.4.4.1700000000000000000.0\t_INBOX.9\t+NXT 1\n"
    b'P $JS.API.CONSUMER.INFO.S.c\t_INBOX.10\t\nP $JS.API.STREAM.INFO.S\t_INBOX.11\t{"subjects_filter":">"}\n',
    _SETUP + b"S deliver.me\tq\n"
    b"P $JS.API.CONSUMER.CREATE.S.p.s.1\t_INBOX.1\t"
    b'{"stream_name":"S","config":{"name":"p","deliver_subject":"deliver.me","deliver_group":"q","filter_subject":"s.1",'
    b'"ack_policy":"all","flow_control":true,"idle_heartbeat":1000000000,"max_deliver":3,"sample_freq":"50%"}}\n'
    b"P s.1\t_INBOX.2\tx\nP $JS.ACK.S.p.1.1.1.1.0\t_INBOX.3\t\n"
    b'P $JS.API.CONSUMER.PAUSE.S.p\t_INBOX.4\t{"pause_until":"2030-01-01T00:00:00Z"}\n'
    b'P $JS.API.CONSUMER.RESET.S.c\t_INBOX.5\t{"seq":1}\n'
    b'P $JS.API.CONSUMER.DELETE.S.p\t_INBOX.6\t\nP $JS.API.CONSUMER.NAMES.S\t_INBOX.7\t{"offset":0}\n'
    b"P $JS.API.CONSUMER.LIST.S\t_INBOX.8\t\nU 1\n",
    _SETUP + b'P s.1\t\tx\nP $JS.API.STREAM.MSG.GET.S\t_INBOX.1\t{"seq":1}\n'
    b'P $JS.API.STREAM.MSG.GET.S\t_INBOX.2\t{"last_by_subj":"s.1"}\n'
    b'P $JS.API.DIRECT.GET.S\t_INBOX.3\t{"multi_last":["s.>"],"batch":3}\nP $JS.API.DIRECT.GET.S.s.1\t_INBOX.4\t\n'
    b'P $JS.API.STREAM.MSG.DELETE.S\t_INBOX.5\t{"seq":1,"no_erase":true}\n'
    b'P $JS.API.STREAM.PURGE.S\t_INBOX.6\t{"filter":"s.1","keep":1}\n'
    b'P $JS.API.STREAM.UPDATE.S\t_INBOX.7\t{"name":"S","subjects":["s.>","t.*"],"max_age":1000000000}\n'
    b'P $JS.API.STREAM.NAMES\t_INBOX.8\t{"subject":"s.>"}\nP $JS.API.STREAM.LIST\t_INBOX.9\t\n'
    b"P $JS.API.INFO\t_INBOX.10\t\n"
    b"P $JS.API.STREAM.DELETE.S\t_INBOX.11\t\n",
    # Names that are not UTF-8, in every place that takes one.
    _SETUP + b'P $JS.API.CONSUMER.CREATE.S.\xff\t_INBOX.1\t{"stream_name":"S","config":{"ack_policy":"explicit"}}\n'
    b'P $JS.API.CONSUMER.CREATE.S.\xfe.s.\xff\t_INBOX.1\t{"stream_name":"S","config":{"name":"\xef\xbf\xbd"}}\n'
    b'P $JS.API.CONSUMER.DURABLE.CREATE.S.\xff\t_INBOX.1\t{"stream_name":"S","config":{"durable_name":"\xff"}}\n'
    b"P $JS.API.CONSUMER.DELETE.S.\xff\t_INBOX.2\t\nP $JS.API.CONSUMER.INFO.S.\xc3\t_INBOX.2\t\n"
    b"P $JS.API.CONSUMER.NAMES.\xff\t_INBOX.2\t\nP $JS.API.CONSUMER.MSG.NEXT.S.\xff\t_INBOX.2\t1\n"
    b'P $JS.API.CONSUMER.PAUSE.S.\xff\t_INBOX.2\t{}\nP $JS.API.STREAM.CREATE.\xff\t_INBOX.2\t{"name":"\xff"}\n'
    b'P $JS.API.STREAM.CREATE.\xff\t_INBOX.2\t{"name":"\xef\xbf\xbd"}\nP $JS.API.STREAM.DELETE.\xff\t_INBOX.2\t\n'
    b'P $JS.API.STREAM.CREATE.U\t_INBOX.2\t{"name":"U","subjects":["\\ud800"]}\nP s.\xff\t_INBOX.2\tx\n'
    b"P $JS.API.DIRECT.GET.S.s.\xff\t_INBOX.2\t\nP $JS.ACK.S.\xff.1.1.1.1.0\t_INBOX.2\t+NAK \xff\n"
    b'P $JS.API.STREAM.INFO.S\t_INBOX.2\t{"subjects_filter":">"}\n'
    b"H s.\xff\t_INBOX.2\t|Nats-Msg-Id: \xff|Nats-Trace-Dest: t.\xff|Nats-Expected-Last-Msg-Id: \xfe\t\xff\n",
    b'P $JS.API.STREAM.CREATE.KV_b\t_INBOX.1\t{"name":"KV_b","subjects":["$KV.b.>"],"max_msgs_per_subject":3,'
    b'"allow_rollup_hdrs":true,"discard":"new","storage":"memory","allow_direct":true,"allow_msg_counter":false,'
    b'"republish":{"src":">","dest":"again.>"},"subject_transform":{"src":"$KV.b.*","dest":"$KV.b.{{wildcard(1)}}"}}\n'
    b"P $KV.b.k\t_INBOX.2\tv\nH $KV.b.k\t_INBOX.3\t|KV-Operation: PURGE|Nats-Rollup: sub\t\n"
    b'P $JS.API.CONSUMER.CREATE.KV_b\t_INBOX.4\t{"stream_name":"KV_b","config":{"deliver_policy":"last_per_subject",'
    b'"mem_storage":true,"inactive_threshold":1000000,"filter_subjects":["$KV.b.k","$KV.b.l"]}}\n'
    b"S $JS.EVENT.>\t\nS again.>\t\nP $KV.b.k\t_INBOX.5\tw\nH a.b\t_INBOX.6\t|Nats-Trace-Dest: trace.me\tx\n"
    b"P $JS.API.STREAM.DELETE.KV_b\t_INBOX.7\t\n",
]
