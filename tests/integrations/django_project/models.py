# mypy: disable-error-code=var-annotated
from __future__ import annotations

from django.db import models


class Customer(models.Model):
    name = models.CharField(max_length=40)


class Invoice(models.Model):
    order_id = models.CharField(max_length=40, unique=True)
    customer = models.ForeignKey(Customer, models.CASCADE, null=True)
    at = models.DateTimeField(null=True)
    details = models.JSONField(null=True)
