"""The same client without await, for scripts, notebooks and threads."""

import os

import jetlake.blocking

with jetlake.blocking.connect(os.environ.get("NATS_URL")) as nc:
    js = nc.jetstream()
    stream = js.create_stream("SCRIPT", subjects=["script.>"])
    for number in range(20):
        js.publish("script.line", b"%d" % number)
    worker = stream.create_consumer("worker")
    print("fetched", len(worker.fetch(5)))
    total = 0
    with worker.consume() as messages:
        for message in messages:
            message.ack()
            total += int(message.payload)
            if message.metadata.pending == 0:
                break
    print("the others add up to", total)
    stream.delete()
