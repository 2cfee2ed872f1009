"""A link: messages to the hub and from it, with their stored subjects, queue groups, and what may not cross."""

import pytest

from tests.support.shell import Client


async def test_messages_to_the_hub(hub):
    end = await hub().join()
    end.send(b"LS+ a.*\r\nLS+ a.1 q 2\r\n")
    end.account.publish(b"a.1", b"r", b"", b"x")
    end.account.publish(b"a.2", b"", b"NATS/1.0\r\n\r\n", b"x")
    assert await end.take() == b"LMSG a.1 + r q 1\r\nx\r\nHMSG a.2 12 13\r\nNATS/1.0\r\n\r\nx\r\n"
    assert (end.link.out_msgs, end.link.out_bytes) == (2, 14)


async def test_a_hub_without_headers_gets_none(hub):
    end = await hub().join(headers=False)
    end.send(b"LS+ a\r\n")
    end.account.publish(b"a", b"", b"NATS/1.0\r\n\r\n", b"x")
    assert await end.take() == b"LMSG a 1\r\nx\r\n"


async def test_deliveries_of_a_stream_carry_their_subject_behind_the_reply(hub):
    end = await hub().join()
    end.send(b"LS+ _INBOX.x\r\n")
    run = [(b"es.1", b"$JS.ACK.S.c.1.1.1.1.0", b"", b"x"), (b"_INBOX.x", b"", b"NATS/1.0 408\r\n\r\n", b"")]
    assert end.account.send_to(b"_INBOX.x", run) == 2
    expected = b"LMSG _INBOX.x $JS.ACK.S.c.1.1.1.1.0@es.1 1\r\nx\r\nHMSG _INBOX.x 16 16\r\nNATS/1.0 408\r\n\r\n\r\n"
    assert await end.take() == expected


@pytest.mark.parametrize("prefix", [b"$JS.ACK.S.c.", b"$JS.ACK.hub.HASH.S.c."])
async def test_deliveries_from_the_hub_get_their_subject_back(hub, make_server, prefix):
    server = make_server()
    client = await Client(server).hello()
    client.send(b"SUB _INBOX.x 1\r\n")
    end = await hub(server=server).join()
    reply = prefix + b"1.1.1.99.0"
    end.send(b"LMSG _INBOX.x " + reply + b"@es.a@b 1\r\nx\r\nLMSG _INBOX.x " + reply + b" 1\r\ny\r\n")
    assert await client.take() == b"MSG es.a@b 1 %b 1\r\nx\r\nMSG _INBOX.x 1 %b 1\r\ny\r\n" % (reply, reply)


async def test_deliveries_that_follow_each_other_stay_a_run(hub):
    end = await hub().join()
    runs = []
    end.account.listen_to_runs(b"$JS.M.x", runs.append)
    await end.take()
    lines = [b"LMSG $JS.M.x $JS.ACK.S.c.1.%d.%d.9.0@es.1 1\r\nx\r\n" % (n, n) for n in range(1, 6)]
    end.send(b"".join(lines[:3]) + b"LMSG other 0\r\n\r\n" + b"".join(lines[3:]))
    assert [len(run) for run in runs] == [3, 2]
    assert runs[0][0] == (b"es.1", b"$JS.ACK.S.c.1.1.1.9.0", b"", b"x")


async def test_groups_of_a_frame(hub, make_server):
    server = make_server()
    client = await Client(server).hello()
    client.send(b"SUB a q 1\r\nSUB a p 2\r\nSUB a 3\r\n")
    end = await hub(server=server).join()
    end.send(b"LMSG a | q 1\r\nx\r\n")
    assert sorted((await client.take()).split(b"\r\n")) == sorted(
        b"MSG a 3 1\r\nx\r\nMSG a 1 1\r\nx\r\n".split(b"\r\n")
    )
    end.send(b"LMSG a 1\r\ny\r\n")
    assert await client.take() == b"MSG a 3 1\r\ny\r\n"
    assert end.link.groups is None


async def test_each_side_keeps_its_own_jetstream(hub):
    end = await hub().join(domain="hub")
    end.send(b"LS+ $JS.API.>\r\nLS+ $KV.>\r\nLS+ $JS.edge.API.>\r\nLS+ $JS.hub.API.>\r\nLS+ >\r\n")
    assert sorted(end.link.subjects) == [b"$JS.hub.API.>", b">"]
    for subject in (b"$JS.API.INFO", b"$KV.b.k", b"$OBJ.b", b"$JS.edge.API.INFO", b"$JS.hub.API.INFO", b"$JS.ACK.x"):
        end.account.publish(subject, b"", b"", b"")
    assert await end.take() == b"LMSG $JS.hub.API.INFO 0\r\n\r\nLMSG $JS.ACK.x 0\r\n\r\n"
    heard = []
    end.account.listen(b">", lambda subject, *_: heard.append(subject))
    end.send(b"LMSG $JS.API.INFO 0\r\n\r\nLMSG $KV.b.k 0\r\n\r\nLMSG a 0\r\n\r\n")
    assert heard == [b"a"]


@pytest.mark.parametrize(
    ("reply", "is_kept"),
    [
        (b"$JS.API.STREAM.DELETE.S", False),
        (b"$JS.edge.API.STREAM.DELETE.S", False),
        (b"$KV.bucket.key", False),
        (b"$OBJ.bucket.C.x", False),
        (b"$JS.hub.API.STREAM.DELETE.S", True),
        (b"$JS.FC.S.c.x", True),
        (b"_INBOX.x", True),
    ],
)
async def test_no_answer_is_a_request_in_the_name_of_the_hub(hub, make_server, reply, is_kept):
    server = make_server()
    client = await Client(server).hello()
    client.send(b"SUB a 1\r\n")
    end = await hub(server=server).join()
    end.send(b"LMSG a %b 1\r\nx\r\n" % reply)
    assert await client.take() == (b"MSG a 1 %b 1\r\nx\r\n" % reply if is_kept else b"MSG a 1 1\r\nx\r\n")
    assert len(end.reports) == (not is_kept)


async def test_denied_imports_and_exports(hub, make_server):
    server = make_server()
    client = await Client(server).hello()
    client.send(b"SUB noise.a 1\r\nSUB *.a 2\r\n")
    end = hub(server=server, deny_imports=("noise.>",), deny_exports=("own.>",))
    end.send_info()
    lines = (await end.take()).split(b"\r\n")
    assert b"LS+ *.a" in lines
    assert b"LS+ noise.a" not in lines
    end.send(b"LMSG noise.a 0\r\n\r\nLMSG news.a 0\r\n\r\nLS+ own.b\r\nLS+ *.b\r\n")
    assert await client.take() == b"MSG news.a 2 0\r\n\r\n"
    assert end.link.subjects == [b"*.b"]
    client.send(b"PUB own.b 0\r\n\r\nPUB all.b 0\r\n\r\n")
    assert await end.take() == b"LMSG all.b 0\r\n\r\n"


async def test_a_hub_of_the_same_domain_keeps_to_itself(hub):
    end = hub()
    end.account.listen(b"$JS.edge.API.STREAM.>", lambda *_: None)
    end.send_info(domain="edge")
    assert b"$JS" not in await end.take()
    end.send(b"LS+ $JS.edge.API.STREAM.>\r\n")
    assert end.link.subjects == []
    heard = []
    end.account.listen(b">", lambda subject, *_: heard.append(subject))
    end.send(b"LMSG $JS.edge.API.STREAM.NAMES 0\r\n\r\n")
    assert heard == []


async def test_permissions_of_the_hub(hub, make_server):
    server = make_server()
    client = await Client(server).hello()
    client.send(b"SUB in.a 1\r\nSUB in.b 2\r\nSUB other 3\r\nSUB _R_.p.x 4\r\n")
    rules = {"import": {"allow": ["in.>"], "deny": ["in.b"]}, "export": {"allow": ["out.>"], "deny": ["out.b"]}}
    end = hub(server=server)
    end.send_info(**rules)
    assert sorted((await end.take()).split(b"\r\n")[2:]) == [b"", b"LS+ in.a"]
    end.send(b"LS+ >\r\n")
    for subject in (b"out.a", b"out.b", b"x"):
        end.account.publish(subject, b"", b"", b"")
    assert await end.take() == b"LMSG out.a 0\r\n\r\n"


async def test_a_message_that_is_too_large_for_the_hub_is_reported_and_nothing_else_is_lost(hub):
    end = await hub().join(max_payload=4)
    end.send(b"LS+ a\r\n")
    assert end.account.publish(b"a", b"", b"", b"12345") == 0
    assert end.account.publish(b"a", b"", b"", b"1234") == 1
    assert await end.take() == b"LMSG a 4\r\n1234\r\n"
    assert "too large for the hub" in end.reports[0]


async def test_invalid_and_unknown_interest_is_ignored(hub):
    end = await hub().join()
    end.send(b"LS+ a..b\r\nLS+ a.>.b\r\nLS- never\r\nLS- never q\r\nLS+ ok\r\nLS+ ok\r\nLS+ ok q 1\r\nLS+ ok q 5\r\n")
    assert end.link.subjects == [b"ok", b"ok"]
    assert not end.connection.closed
    end.send(b"LS- ok\r\nLS- ok q\r\n")
    assert end.link.subjects == []


async def test_interest_of_an_inbox_goes_before_the_request(hub, make_server):
    server = make_server()
    end = await hub(server=server).join()
    end.send(b"LS+ svc\r\n")
    client = await Client(server).hello(no_responders=True)
    client.send(b"SUB _INBOX.x.* 1\r\nPUB svc _INBOX.x.1 2\r\nhi\r\nPUB none _INBOX.x.2 0\r\n\r\n")
    assert await end.take() == b"LS+ _INBOX.x.*\r\nLMSG svc _INBOX.x.1 2\r\nhi\r\n"
    assert b"503" in await client.take()
    end.send(b"LMSG _INBOX.x.1 3\r\nyes\r\n")
    assert await client.take() == b"MSG _INBOX.x.1 1 3\r\nyes\r\n"
