from __future__ import annotations

import json
from decimal import Decimal

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .events import OrderPlaced, app
from .models import Invoice, Order

CREDIT = Decimal(1000)


class TooMuch(Exception):
    pass


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    asked = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=asked["customer"], total=Decimal(asked["total"]))
            app.publish_sync(connection, OrderPlaced(order_id=order.pk, total=order.total))
            if order.total > CREDIT:
                raise TooMuch
    except TooMuch:
        return JsonResponse({"error": "too much; neither the order nor its event exists"}, status=422)
    return JsonResponse({"id": order.pk}, status=201)


def show(_: HttpRequest, order_id: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=order_id)
    invoice = Invoice.objects.filter(order=order).first()
    issued = None if invoice is None else {"number": invoice.pk, "total": str(invoice.total)}
    return JsonResponse({"id": order.pk, "customer": order.customer, "total": str(order.total), "invoice": issued})
