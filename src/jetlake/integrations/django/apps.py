"""The Django app, which brings the management command."""

from __future__ import annotations

from django.apps import AppConfig


class JetlakeConfig(AppConfig):
    """`jetlake.integrations.django` in INSTALLED_APPS."""

    name = "jetlake.integrations.django"
    label = "jetlake"
    verbose_name = "JetStream"
