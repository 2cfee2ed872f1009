"""Spans and metrics of messages, taken from the SDK's memory: published, delivered and handled, with W3C headers."""

import asyncio

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import jetlake
import jetlake.blocking
from jetlake.errors import InvalidOptionError, NoRespondersError
from jetlake.otel import Tracing


class Telemetry:
    """A tracing whose spans and metrics stay in memory."""

    def __init__(self):
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.tracing = Tracing(self.provider, MeterProvider([self._reader]))

    def spans(self):
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def metrics(self):
        """The counts of each metric, by what they are counted by."""
        data = self._reader.get_metrics_data()
        return {
            metric.name: {
                tuple(sorted(point.attributes.items())): getattr(point, "value", None) or getattr(point, "count", None)
                for point in metric.data.data_points
            }
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture
async def client(jetlake_server, telemetry):
    async with jetlake.connect(server=jetlake_server, tracing=telemetry.tracing, on_error=lambda _: None) as client:
        yield client


async def until(condition):
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.005)


def parent(span):
    return span.parent.span_id if span.parent is not None else None


async def test_a_message_from_publisher_to_handler(client, telemetry):
    js = client.jetstream()
    stream = await js.create_stream("ORDERS", subjects=["orders.>"])
    with telemetry.provider.get_tracer("shop").start_as_current_span("checkout") as checkout:
        await js.publish("orders.new", b"42", headers={"Kind": "test"})
    consumer = await stream.create_consumer("worker")

    async def handle(message):
        await js.publish("orders.done", message.payload)
        await message.ack()

    async with consumer.consume(handle, stop_after=1) as read:
        await read.wait()
    spans = telemetry.spans()
    publish, deliver, process = (spans[f"{name} orders.new"] for name in ("publish", "deliver", "process"))
    assert parent(publish) == checkout.get_span_context().span_id
    assert parent(deliver) == publish.context.span_id
    assert parent(process) == deliver.context.span_id
    assert parent(spans["publish orders.done"]) == process.context.span_id
    assert {span.context.trace_id for span in spans.values()} == {checkout.get_span_context().trace_id}
    assert (publish.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert deliver.start_time <= deliver.end_time <= process.end_time
    assert process.attributes["messaging.nats.stream"] == "ORDERS"
    assert process.attributes["messaging.consumer.group.name"] == "worker"
    assert process.attributes["messaging.nats.stream_sequence"] == 1
    assert process.attributes["messaging.nats.delivery_count"] == 1
    assert publish.attributes["messaging.message.body.size"] == 2
    stored = await stream.get(1)
    assert stored.headers["Kind"] == "test"
    assert stored.headers["traceparent"].split("-")[2] == f"{publish.context.span_id:016x}"


async def test_whoever_iterates_says_what_is_handled(client, telemetry):
    js = client.jetstream()
    stream = await js.create_stream("ORDERS", subjects=["orders.>"])
    await (await js.publish_async("orders.new", b"42"))
    async with stream.ordered() as messages:
        message = await messages.next(15)
        with pytest.raises(ValueError, match="no"), telemetry.tracing.handling(message) as span:
            assert span.is_recording()
            raise ValueError("no")
    process = telemetry.spans()["process orders.new"]
    assert process.status.status_code is StatusCode.ERROR
    assert process.attributes["error.type"] == "ValueError"
    assert process.events[0].name == "exception"


@pytest.mark.parametrize("kind", ["coroutine", "plain", "returning"])
async def test_callbacks_and_requests(client, telemetry, kind):
    async def later(message):
        await message.respond(b"b")

    def plain(message):
        message.respond(b"b")

    await client.subscribe(
        "ask.*", {"coroutine": later, "plain": plain, "returning": lambda message: later(message)}[kind]
    )
    assert (await client.request("ask.me", b"a", timeout=15)).payload == b"b"
    await until(lambda: "process ask.me" in telemetry.spans())
    spans = telemetry.spans()
    assert parent(spans["process ask.me"]) == spans["request ask.me"].context.span_id
    assert spans["request ask.me"].kind is SpanKind.CLIENT
    assert "deliver ask.me" not in spans


async def test_services_and_other_writings_of_the_header(client, telemetry, jetlake_server):
    async with client.service("shop", "1.0.0") as shop:

        @shop.endpoint(subject="price")
        async def price(request):
            return request.payload

        async with jetlake.connect(server=jetlake_server) as other:
            headers = {"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
            assert (await other.request("price", b"5", headers=headers, timeout=15)).payload == b"5"
        await until(lambda: "process price" in telemetry.spans())
    process = telemetry.spans()["process price"]
    assert f"{process.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{parent(process):016x}" == "b7ad6b7169203331"


async def test_failures_and_metrics(client, telemetry):
    js = client.jetstream()
    with pytest.raises(NoRespondersError):
        await js.publish("nowhere", b"", retries=0)
    with pytest.raises(InvalidOptionError):
        await js.publish("orders.new", "text")
    stream = await js.create_stream("ORDERS", subjects=["orders.>"])
    await js.publish("orders.new", b"1")
    async with js.batch() as batch:
        with pytest.raises(InvalidOptionError):
            batch.publish("orders.new", b"", timeout=1)
        batch.discard()
    consumer = await stream.create_consumer("worker")
    with pytest.raises(InvalidOptionError, match="handler must be a function"):
        consumer.consume(5)

    def fail(message):
        message.term()
        raise ValueError("no")

    async with consumer.consume(fail, stop_after=1) as read:
        await read.wait()
    assert telemetry.spans()["publish nowhere"].attributes["error.type"] == "NoRespondersError"
    metrics = telemetry.metrics()
    publish = ("messaging.operation.name", "publish")
    nats = ("messaging.system", "nats")
    assert metrics["messaging.client.sent.messages"] == {
        (("error.type", "NoRespondersError"), publish, nats): 1,
        (("error.type", "InvalidOptionError"), publish, nats): 2,
        (publish, nats): 1,
    }
    where = (("messaging.consumer.group.name", "worker"), ("messaging.nats.stream", "ORDERS"), nats)
    assert metrics["messaging.client.consumed.messages"] == {(("error.type", "ValueError"), *where): 1}
    assert set(metrics) >= {"messaging.process.duration", "messaging.client.operation.duration"}


async def test_the_headers_of_batches(client, telemetry):
    js = client.jetstream()
    stream = await js.create_stream("ORDERS", subjects=["orders.>"], allow_atomic=True)
    async with js.batch() as batch:
        batch.publish("orders.1", b"")
        batch.publish("orders.2", b"")
    for sequence in (1, 2):
        span = telemetry.spans()[f"publish orders.{sequence}"]
        assert f"{span.context.span_id:016x}" in (await stream.get(sequence)).headers["traceparent"]


async def test_many_messages_are_traced_one_by_one(client, telemetry):
    js = client.jetstream()
    stream = await js.create_stream("ORDERS", subjects=["orders.>"])
    assert await js.publish_many((f"orders.{number}", b"") for number in (1, 2, 3, 4, 5)) == (5, 0)
    for sequence in (1, 5):
        span = telemetry.spans()[f"publish orders.{sequence}"]
        assert f"{span.context.span_id:016x}" in (await stream.get(sequence)).headers["traceparent"]


def test_the_blocking_client(jetlake_server, telemetry):
    with jetlake.blocking.connect(jetlake_server.url, tracing=telemetry.tracing) as client:
        js = client.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"])
        with telemetry.provider.get_tracer("shop").start_as_current_span("checkout") as checkout:
            js.publish("orders.1", b"1")
            js.publish_async("orders.2", b"2").result()
            client.publish("orders.3", b"3")
            client.flush()
        consumer = stream.create_consumer("worker")
        with consumer.consume(lambda message: message.ack(), stop_after=3) as read:
            read.wait(15)
        client.subscribe("ask", lambda message: message.respond(b"b"))
        assert client.request("ask", b"a", timeout=15).payload == b"b"
    spans = telemetry.spans()
    for number in (1, 2, 3):
        assert parent(spans[f"publish orders.{number}"]) == checkout.get_span_context().span_id
        assert parent(spans[f"deliver orders.{number}"]) == spans[f"publish orders.{number}"].context.span_id
    assert parent(spans["process ask"]) == spans["request ask"].context.span_id


async def test_without_tracing_nothing_is_wrapped_or_loaded(jetlake_client, jetlake_js):
    assert "publish" not in vars(jetlake_client)
    assert "publish" not in vars(jetlake_js)
