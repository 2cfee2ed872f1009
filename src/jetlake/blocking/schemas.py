"""The blocking form of the schemas of payloads."""

from __future__ import annotations

from jetlake.blocking.facade import Call, Facade
from jetlake.client.schemas.schemas import Schemas as AsyncSchemas


class Schemas(Facade):
    """The blocking form of `jetlake.client.Schemas`."""

    _inner: AsyncSchemas

    add = Call(AsyncSchemas.add)
    get = Call(AsyncSchemas.get)
    versions = Call(AsyncSchemas.versions)
    list = Call(AsyncSchemas.list)
    compared = Call(AsyncSchemas.compared)
    check = Call(AsyncSchemas.check)
    validated = Call(AsyncSchemas.validated)
    shown = Call(AsyncSchemas.shown)
    refresh = Call(AsyncSchemas.refresh)
