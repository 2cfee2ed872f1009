"""A server for Django's test cases, with `manage.py test` as well as with pytest-django."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.test import override_settings

import jetlake.blocking
from jetlake.integrations.django.connections import close

if TYPE_CHECKING:
    from unittest import TestCase as _Base
else:
    _Base = object


class JetStreamMixin(_Base):
    """A mixin for `TestCase` and its relatives: an embedded server for the class, to which JETLAKE leads.

    Attributes:
        jetlake_server: the server, which holds what the tests of the class have stored.
    """

    jetlake_server: jetlake.blocking.Server

    @classmethod
    def setUpClass(cls) -> None:
        """Start the server, and let the setting JETLAKE lead to it."""
        super().setUpClass()
        cls.jetlake_server = cls.enterClassContext(jetlake.blocking.Server())
        settings: Any = override_settings(JETLAKE={"servers": cls.jetlake_server.url})
        cls.enterClassContext(settings)
        close()
        cls.addClassCleanup(close)
