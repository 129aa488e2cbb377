# mypy: disable-error-code=var-annotated
from __future__ import annotations

from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=80)
    total = models.DecimalField(max_digits=12, decimal_places=2)
    placed_at = models.DateTimeField(auto_now_add=True)


class Invoice(models.Model):
    order = models.OneToOneField(Order, models.PROTECT)
    total = models.DecimalField(max_digits=12, decimal_places=2)
    issued_at = models.DateTimeField(auto_now_add=True)
