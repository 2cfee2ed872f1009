"""Each of Django's test cases with a server of its own, by `manage.py test` and by pytest-django."""

import os
import subprocess
import sys

import pytest

FILES = {
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
execute_from_command_line(sys.argv)
""",
    "site_settings.py": """
SECRET_KEY = "test"
INSTALLED_APPS = ["django.contrib.contenttypes", "jetlake.integrations.django", "shop"]
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["*"]
STATIC_URL = "/static/"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:site?mode=memory&cache=shared"}}
JETLAKE = {"servers": "nats://127.0.0.1:1"}
""",
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models

class Order(models.Model):
    class Meta:
        app_label = "shop"
""",
    "shop/urls.py": """
from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from jetlake.integrations.django import publish_on_commit
from shop.models import Order

def order(request):
    with transaction.atomic():
        number = Order.objects.create().pk
        publish_on_commit("orders.new", str(number).encode(), msg_id=str(number))
        if "fail" in request.GET:
            transaction.set_rollback(True)
    return HttpResponse(str(number))

urlpatterns = [path("order", order)]
""",
    "shop/tests.py": """
import asyncio
import unittest
from urllib.request import urlopen

from asgiref.sync import sync_to_async
from django.test import LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase

import jetlake
from jetlake.integrations.django import jetstream
from jetlake.integrations.django.testing import JetStreamMixin


class Shop(JetStreamMixin):
    def setUp(self):
        jetstream().create_stream("ORDERS", subjects=["orders.>"])

    def tearDown(self):
        jetstream().delete_stream("ORDERS")

    @property
    def count(self):
        return jetstream().stream("ORDERS").info().state.messages


class InTransaction(Shop, TestCase):
    def test_commit(self):
        with self.captureOnCommitCallbacks(execute=True):
            self.client.get("/order")
        self.assertEqual(self.count, 1)

    def test_rollback(self):
        with self.captureOnCommitCallbacks(execute=True):
            self.client.get("/order?fail")
        self.assertEqual(self.count, 0)

    async def test_async(self):
        def order():
            with self.captureOnCommitCallbacks(execute=True):
                self.client.get("/order")
            return self.count

        self.assertEqual(await sync_to_async(order)(), 1)
        async with jetlake.connect(self.jetlake_server.url) as client:
            info = await (await client.jetstream().stream("ORDERS")).info()
        self.assertEqual(info.state.messages, 1)


class Committed(Shop, TransactionTestCase):
    def test_commit(self):
        self.client.get("/order")
        self.client.get("/order?fail")
        self.assertEqual(self.count, 1)


class Served(Shop, LiveServerTestCase):
    def test_request(self):
        urlopen(self.live_server_url + "/order").read()
        self.assertEqual(self.count, 1)


class WithoutDatabase(Shop, SimpleTestCase):
    def test_publish(self):
        jetstream().publish("orders.new", b"1")
        self.assertEqual(self.count, 1)

    async def test_async(self):
        await sync_to_async(jetstream().publish)("orders.new", b"1")
        self.assertEqual(await sync_to_async(lambda: self.count)(), 1)


class InALoop(Shop, unittest.IsolatedAsyncioTestCase):
    async def test_loop(self):
        async with jetlake.connect(self.jetlake_server.url) as client:
            await client.jetstream().publish("orders.new", b"1")
        self.assertEqual(await asyncio.to_thread(lambda: self.count), 1)
""",
}


@pytest.mark.parametrize(
    "command",
    [
        ["manage.py", "test", "shop"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--ds=site_settings", "shop/tests.py"],
    ],
    ids=["manage", "pytest"],
)
def test_every_test_case_has_a_server(command, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "Ran 8 tests" in printed or "8 passed" in printed, printed
