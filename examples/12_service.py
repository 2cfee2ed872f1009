"""A service: endpoints that answer requests, errors with a code, and statistics that everybody can ask for."""

import asyncio
import os

import jetlake
from jetlake.client import ServiceRequest
from jetlake.errors import ServiceError

PRICES = {"tea": 42}


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc, nc.service("till", "1.0.0") as till:

        @till.endpoint(subject="till.price")
        async def price(request: ServiceRequest) -> bytes:
            name = request.payload.decode()
            if name not in PRICES:
                raise ServiceError(404, f"nothing called {name}")
            return b"%d" % PRICES[name]

        services = nc.services()
        print((await services.request("till.price", b"tea")).payload.decode())
        try:
            await services.request("till.price", b"coffee")
        except ServiceError as error:
            print(f"({error.code})", error.description)
        for instance in await services.stats("till"):
            for one in instance.endpoints or ():
                told = f"{one.num_requests} requests, {one.num_errors} error"
                print(f"{instance.name} {instance.version}: {told}")


asyncio.run(main())
