"""The whole service, blocking throughout: two tables, one event, a view that publishes, a handler that writes.

`web` is what Flask serves, `app` is what the worker runs. Both find the database in OUTRIDER_DSN.
"""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
from flask import Flask, request
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outrider import Event, Outrider


class OrderPlaced(Event, type="flask_shop.order_placed", key="order_id"):
    order_id: UUID
    total: Decimal


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    article: Mapped[str]
    total: Mapped[Decimal]


class Invoice(Base):
    __tablename__ = "invoice"

    order_id: Mapped[UUID] = mapped_column(primary_key=True)
    total: Mapped[Decimal]


app = Outrider(context="flask_shop")
web = Flask(__name__)
engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(os.environ["OUTRIDER_DSN"]))


@app.handler(OrderPlaced, name="flask_shop.invoice")
def invoice(event: OrderPlaced, session: Session) -> None:
    """The invoice and the receipt of the event commit together, or neither."""
    session.add(Invoice(order_id=event.order_id, total=event.total))


@web.post("/orders")
def place() -> tuple[dict[str, Any], int]:
    """The order and its event commit together. Out of stock: neither is ever seen."""
    asked = request.get_json()
    order = Order(id=uuid4(), article=asked["article"], total=Decimal(asked["total"]))
    with Session(engine) as session:
        session.add(order)
        app.publish_sync(session, OrderPlaced(order_id=order.id, total=order.total))
        if order.article == "unicorn":
            return {"error": "out of stock"}, 409  # the session is closed without a commit
        session.commit()
        return {"order_id": str(order.id)}, 201


@web.get("/invoices")
def invoices() -> list[str]:
    with Session(engine) as session:
        return [str(total) for total in session.scalars(select(Invoice.total).order_by(Invoice.total))]
