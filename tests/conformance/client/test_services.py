"""Services on both servers: endpoints, groups, errors, discovery and statistics, with nats-py on the other side too."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import nats
import nats.micro
import pytest

import jetlake.blocking
from jetlake.errors import BadSubjectError, InvalidOptionError, JetlakeError, NoRespondersError, ServiceError
from tests.support.clients import cancelled_in_first_turn, flush_nats_py, until


async def ready(client):
    """Wait until the server knows all subscriptions."""
    await client.flush()


async def test_endpoints_groups_and_queue_groups(core, clients):
    nc, caller = await clients(core), await clients(core)
    async with nc.service("shop", "1.2.3", description="sells", metadata={"team": "a"}) as shop:

        @shop.endpoint()
        async def price(request):
            return b"price of " + request.payload

        orders = shop.group("orders").group("v1", queue="workers")

        @orders.endpoint("create", subject="create.*", metadata={"format": "json"})
        def create(request):
            request.respond(request.subject.encode(), headers={"Seen": request.headers["Id"]})

        shop.add_endpoint("everyone", lambda request: b"me", queue=None)
        await ready(nc)
        assert (await caller.request("price", b"tea")).payload == b"price of tea"
        answer = await caller.request("orders.v1.create.7", headers={"Id": "9"})
        assert (answer.payload, answer.headers["Seen"]) == (b"orders.v1.create.7", "9")
        (info,) = await caller.services().info("shop")
        assert (info.name, info.id, info.version, info.description) == ("shop", shop.id, "1.2.3", "sells")
        assert info.metadata == {"team": "a"}
        assert [(one.name, one.subject, one.queue_group, one.metadata) for one in info.endpoints] == [
            ("price", "price", "q", {}),
            ("create", "orders.v1.create.*", "workers", {"format": "json"}),
            ("everyone", "everyone", "", {}),
        ]
    with pytest.raises(NoRespondersError):
        await caller.request("price")


async def test_a_stop_that_is_cancelled_at_once_stops_all_the_same(core, clients):
    nc, caller = await clients(core), await clients(core)
    shop = await nc.service("shop", "1.0.0").start()
    shop.add_endpoint("price", lambda request: b"42")
    await ready(nc)
    await cancelled_in_first_turn(shop.stop())
    await ready(nc)
    assert shop.is_stopped
    with pytest.raises(NoRespondersError):
        await caller.request("price")
    with pytest.raises(NoRespondersError):
        await caller.request("$SRV.PING.shop")
    await shop.stop()


async def test_an_error_that_cannot_be_sent_as_it_is_is_answered_all_the_same(core, clients):
    reported = []
    nc, caller = await clients(core, on_error=reported.append), await clients(core)
    errors = {
        "silent": ServiceError(400, ""),
        "odd": ServiceError("no number", "text"),
        "large": ServiceError(400, "large", b"x" * nc.max_payload),
        "long": RuntimeError("x" * nc.max_payload),
    }

    def fail(request):
        raise errors[request.subject]

    async with nc.service("failing", "0.1.0") as service:
        for name in errors:
            service.add_endpoint(name, fail)
        service.add_endpoint("code", lambda request: respond_code(request, "\N{SUPERSCRIPT TWO}"))
        service.add_endpoint("digits", lambda request: respond_code(request, "9" * 5000))
        await ready(nc)
        said = {}
        for name in [*errors, "code", "digits"]:
            with pytest.raises(ServiceError) as caught:
                await caller.services().request(name)
            said[name] = (caught.value.code, caught.value.description)
        assert {name: code for name, (code, _) in said.items()} == dict.fromkeys(errors, 500) | {"code": 0, "digits": 0}
        assert "accepts" in said["large"][1]
        assert said["long"][1].startswith("RuntimeError: xxx")
        assert [type(error) for error in reported] == [InvalidOptionError] * 3 + [RuntimeError]
        (stats,) = await caller.services().stats("failing")
        assert [one.num_errors for one in stats.endpoints] == [1, 1, 1, 1, 0, 0]


async def test_a_handler_that_awaits_what_is_cancelled_has_not_stopped_the_service(core, clients):
    nc, caller = await clients(core, on_error=lambda _: None), await clients(core)
    async with nc.service("cancelling", "0.1.0") as service:

        @service.endpoint()
        async def cancels(request):
            raise asyncio.CancelledError

        await ready(nc)
        with pytest.raises(ServiceError, match="awaited something that was cancelled"):
            await caller.services().request("cancels")


def respond_code(request, code):
    request.respond(headers={"Nats-Service-Error": "failed", "Nats-Service-Error-Code": code})


async def test_errors_are_headers_and_are_counted(core, clients):
    reported = []
    nc, caller = await clients(core, on_error=reported.append), await clients(core)
    async with nc.service("math", "0.1.0", stats_data=lambda endpoint: {"of": endpoint.name}) as service:

        @service.endpoint()
        async def divide(request):
            numbers = json.loads(request.payload)
            if len(numbers) != 2:
                raise ServiceError(400, "two\nnumbers, please", b"more")
            return b"%d" % (numbers[0] // numbers[1])

        @service.endpoint()
        async def refuse(request):
            request.respond_error(403, "no")

        await ready(nc)
        services = caller.services()
        assert (await services.request("divide", b"[6, 3]")).payload == b"2"
        with pytest.raises(ServiceError, match="two numbers") as caught:
            await services.request("divide", b"[1]")
        assert (caught.value.code, caught.value.payload) == (400, b"more")
        with pytest.raises(ServiceError) as caught:
            await services.request("divide", b"[1, 0]")
        assert (caught.value.code, caught.value.description[:17]) == (500, "ZeroDivisionError")
        with pytest.raises(ServiceError, match="no"):
            await services.request("refuse")
        assert [type(error) for error in reported] == [ZeroDivisionError]
        (stats,) = await services.stats("math", service.id)
        divided, refused = stats.endpoints
        assert (divided.num_requests, divided.num_errors, divided.data) == (3, 2, {"of": "divide"})
        assert divided.last_error.startswith("500:ZeroDivisionError")
        assert divided.average_processing_time == divided.processing_time // 3 > 0
        assert (refused.num_requests, refused.last_error) == (1, "403:no")
        service.reset()
        assert service.stats().endpoints[0].num_requests == 0


async def test_discovery_finds_every_instance(core, clients):
    nc, caller = await clients(core), await clients(core)
    services = caller.services()
    assert await services.ping() == []
    async with nc.service("a", "1.0.0") as first, nc.service("a", "1.0.1") as second, nc.service("b", "2.0.0") as other:
        await ready(nc)

        async def finds(name, *expected):
            # Answers end with a moment of silence, which a busy machine may have between two of them.
            return {one.id for one in await services.ping(name)} == {service.id for service in expected}

        await until(lambda: finds("", first, second, other))
        await until(lambda: finds("a", first, second))
        assert {one.version for one in await services.ping("a", first.id)} == {"1.0.0"}
        assert [one.id for one in await services.ping("a", second.id)] == [second.id]
        await second.stop()
        assert [one.id for one in await services.ping("a")] == [first.id]
        with pytest.raises(InvalidOptionError):
            await services.ping("", second.id)


async def test_a_service_that_stops_answers_what_has_come(core, clients):
    nc, caller = await clients(core), await clients(core)
    entered, leave = asyncio.Event(), asyncio.Event()
    service = await nc.service("slow", "1.0.0").start()

    @service.endpoint()
    async def work(request):
        entered.set()
        await leave.wait()
        return b"done"

    await ready(nc)
    requests = [asyncio.ensure_future(caller.request("work")) for _ in range(3)]
    await caller.flush()
    await entered.wait()
    stopping = asyncio.ensure_future(service.stop())
    await until(lambda: service.is_stopped)
    leave.set()
    await stopping
    assert [answer.payload for answer in await asyncio.gather(*requests)] == [b"done"] * 3
    await service.stop()
    with pytest.raises(JetlakeError, match="was stopped"):
        service.add_endpoint("late", work)
    with pytest.raises(JetlakeError, match="create another"):
        await service.start()


async def test_a_service_comes_back_with_its_connection(start, clients):
    server = await start(flags=["no_jetstream"])
    nc = await clients(server, reconnect_wait=0.01)
    async with nc.service("stays", "1.0.0") as service:
        service.add_endpoint("echo", lambda request: request.payload)
        await server.restart()
        await until(lambda: nc.reconnects and nc.is_connected)
        await ready(nc)
        caller = await clients(server)
        assert (await caller.request("echo", b"x")).payload == b"x"
        assert [one.id for one in await caller.services().ping()] == [service.id]


async def test_names_that_others_refuse_are_refused(core, clients):
    nc = await clients(core)
    for name, version in (("a b", "1.0.0"), ("", "1.0.0"), ("a.b", "1.0.0"), ("a", "1"), ("a", "01.0.0"), ("a", "")):
        with pytest.raises(InvalidOptionError):
            nc.service(name, version)
    service = nc.service("a", "1.0.0-rc.1+5")
    service.add_endpoint("e", print)
    with pytest.raises(InvalidOptionError, match="already"):
        service.add_endpoint("e", print)
    with pytest.raises(InvalidOptionError):
        service.add_endpoint("a.b", print)
    with pytest.raises(InvalidOptionError):
        service.add_endpoint("f", None)
    for prefix in ("a.>", "a b", "*", ""):
        with pytest.raises(BadSubjectError):
            service.group(prefix)
    with pytest.raises(BadSubjectError):
        service.add_endpoint("g", print, subject="a b")


async def test_nats_py_finds_and_calls_our_service(core, clients):
    nc = await clients(core)
    other = await nats.connect(core.url)
    try:
        async with nc.service("shop", "1.0.0", metadata={"k": "v"}) as shop:

            @shop.endpoint(subject="shop.fail")
            async def fail(request):
                raise ServiceError(404, "nothing here")

            await ready(nc)
            answer = await other.request("shop.fail", b"", timeout=10)
            assert answer.headers == {"Nats-Service-Error": "nothing here", "Nats-Service-Error-Code": "404"}
            pong = nats.micro.service.ServicePing.from_dict(
                json.loads((await other.request("$SRV.PING.shop", timeout=10)).data)
            )
            assert (pong.name, pong.id, pong.type) == ("shop", shop.id, "io.nats.micro.v1.ping_response")
            said = json.loads((await other.request(f"$SRV.STATS.shop.{shop.id}", timeout=10)).data)
            stats = nats.micro.service.ServiceStats.from_dict(said)
            assert (stats.endpoints[0].num_requests, stats.endpoints[0].num_errors) == (1, 1)
            assert stats.endpoints[0].last_error == "404:nothing here"
    finally:
        await other.close()


async def test_our_client_finds_and_calls_a_service_of_nats_py(core, clients):
    nc = await clients(core)
    other = await nats.connect(core.url)
    try:
        service = await nats.micro.add_service(other, name="theirs", version="0.0.1", description="d")

        async def handle(request):
            if request.data == b"bad":
                await request.respond_error("418", "teapot")
            else:
                await request.respond(request.data.upper())

        await service.add_endpoint(name="up", handler=handle)
        await flush_nats_py(other)
        services = nc.services()
        assert (await services.request("up", b"a")).payload == b"A"
        with pytest.raises(ServiceError, match=r"teapot \(418\)"):
            await services.request("up", b"bad")
        assert [one.name for one in await services.ping()] == ["theirs"]
        (info,) = await services.info("theirs")
        assert [(one.name, one.queue_group) for one in info.endpoints] == [("up", "q")]
        (stats,) = await services.stats("theirs")
        assert stats.endpoints[0].num_requests == 2
        await service.stop()
    finally:
        await other.close()


async def test_the_blocking_client_has_services(core):
    def work():
        with jetlake.blocking.connect(core.url) as nc, jetlake.blocking.connect(core.url) as caller:
            with nc.service("shop", "1.0.0") as shop:

                @shop.group("g").endpoint()
                def twice(request):
                    if not request.payload:
                        raise ServiceError(400, "empty")
                    return request.payload * 2

                nc.flush()
                services = caller.services()
                assert services.request("g.twice", b"ab").payload == b"abab"
                with pytest.raises(ServiceError, match="empty"):
                    services.request("g.twice")
                assert [one.id for one in services.ping("shop")] == [shop.id]
                assert services.stats("shop")[0].endpoints[0].num_requests == 2
                assert services.info("shop")[0].endpoints == shop.info().endpoints
            assert shop.is_stopped

    await asyncio.to_thread(work)


async def test_several_requests_at_a_time(core, clients):
    nc, caller = await clients(core), await clients(core)
    together = asyncio.Barrier(3)
    most = now = 0
    async with nc.service("shop", "1.0.0", concurrency=3) as shop:

        @shop.endpoint()
        async def together_only(request):
            async with asyncio.timeout(15):
                await together.wait()
            return request.payload

        @shop.endpoint(concurrency=2)
        async def two(request):
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            return b""

        await ready(nc)
        answers = await asyncio.gather(*(caller.request("together_only", b"%d" % n, timeout=15) for n in range(6)))
        assert [answer.payload for answer in answers] == [b"%d" % n for n in range(6)]
        await asyncio.gather(*(caller.request("two", timeout=15) for _ in range(20)))
        assert most == 2
        assert [one.num_requests for one in shop.stats().endpoints] == [6, 20]
        for bad in (0, True, "2"):
            with pytest.raises(InvalidOptionError, match="concurrency"):
                shop.add_endpoint(f"e{bad}", print, concurrency=bad)


async def test_a_service_that_stops_finishes_all_that_it_works_on(core, clients):
    nc, caller = await clients(core), await clients(core)
    begun, free = asyncio.Semaphore(0), asyncio.Event()
    shop = await nc.service("shop", "1.0.0", concurrency=3).start()

    @shop.endpoint()
    async def slow(request):
        begun.release()
        await free.wait()
        return request.payload

    await ready(nc)
    requests = [asyncio.create_task(caller.request("slow", b"%d" % n, timeout=15)) for n in range(5)]
    for _ in range(3):
        await begun.acquire()
    await caller.flush()
    stopping = asyncio.create_task(shop.stop())
    await until(lambda: shop.is_stopped)
    free.set()
    assert [answer.payload for answer in await asyncio.gather(*requests)] == [b"%d" % n for n in range(5)]
    await stopping


async def test_the_blocking_clients_services_have_threads(core):
    def work():
        with jetlake.blocking.connect(core.url) as nc, jetlake.blocking.connect(core.url) as caller:
            together = threading.Barrier(2)
            with nc.service("shop", "1.0.0", concurrency=2) as shop:

                @shop.endpoint()
                def meet(request):
                    together.wait(15)
                    return b"met"

                nc.flush()
                with ThreadPoolExecutor(2) as pool:
                    answers = [pool.submit(caller.request, "meet", timeout=15) for _ in range(2)]
                    assert [answer.result().payload for answer in answers] == [b"met", b"met"]

    await asyncio.to_thread(work)


class Outcome(BaseException):
    """What is no Exception, as pytest's own outcomes."""


async def test_a_handler_that_raises_no_exception_answers_and_goes_on(core, clients):
    reported = []
    nc, caller = await clients(core, on_error=reported.append), await clients(core)

    def plain(message):
        raise Outcome

    async with nc.service("s", "1.0.0") as service:

        @service.endpoint()
        async def fail(request):
            raise Outcome

        await nc.subscribe("plain", callback=plain)
        await ready(nc)
        for _ in range(2):
            with pytest.raises(ServiceError, match="Outcome"):
                await caller.services().request("fail")
            await caller.publish("plain")
        await until(lambda: len(reported) == 4)
    assert nc.reconnects == 0


async def test_a_blocking_handler_that_exits_its_thread_ends_nothing_else(core):
    def work():
        with (
            jetlake.blocking.connect(core.url, on_error=lambda error: None) as nc,
            jetlake.blocking.connect(core.url) as caller,
            nc.service("s", "1.0.0") as service,
        ):

            @service.endpoint()
            def leave(request):
                raise SystemExit

            nc.flush()
            for _ in range(2):
                with pytest.raises(ServiceError, match="SystemExit"):
                    caller.services().request("leave")

    await asyncio.to_thread(work)
