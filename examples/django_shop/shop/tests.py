"""`manage.py test`: the handlers run inside the test's transaction, on its own events, and leave nothing behind."""

from __future__ import annotations

import json
from decimal import Decimal

from django.db import connection
from django.test import TestCase

from outrider.testing import assert_published_in_sync, drain_sync

from .events import OrderPlaced, app
from .models import Invoice, Order


class PlacingAnOrder(TestCase):
    def place(self, total: str) -> int:
        body = json.dumps({"customer": "ada", "total": total})
        return self.client.post("/orders/", body, content_type="application/json").status_code

    def test_an_order_is_invoiced(self) -> None:
        assert self.place("9.90") == 201
        assert_published_in_sync(connection, OrderPlaced, fields={"total": Decimal("9.90")})
        assert drain_sync(app, connection).handled == 1
        invoice = Invoice.objects.get()
        assert (invoice.order.customer, str(invoice.total)) == ("ada", "9.90")

    def test_a_refused_order_tells_nobody(self) -> None:
        assert self.place("5000") == 422
        assert drain_sync(app, connection).handled == 0
        assert not Order.objects.exists()
