"""The whole service: two tables, one event, an endpoint that publishes, a handler that writes. `api` is what uvicorn runs.

The requests use SQLAlchemy with asyncpg; the handler's session works on the worker's own transaction.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outrider import Event, Outrider
from outrider.integrations.starlette import lifespan


class OrderPlaced(Event, type="shop.order_placed", version=1, key="order_id"):
    order_id: UUID
    total: Decimal


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    article: Mapped[str]
    total: Mapped[Decimal]


class Invoice(Base):
    __tablename__ = "invoice"

    order_id: Mapped[UUID] = mapped_column(primary_key=True)
    total: Mapped[Decimal]


app = Outrider(context="shop")


@app.handler(OrderPlaced, name="shop.invoice")
async def invoice(event: OrderPlaced, session: AsyncSession) -> None:
    """The invoice and the receipt of the event commit together, or neither."""
    session.add(Invoice(order_id=event.order_id, total=event.total))


@asynccontextmanager
async def database(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """The service's own connections, beside those of Outrider."""
    engine = create_async_engine(os.environ["SHOP_DATABASE"])
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all)
    yield {"engine": engine}
    await engine.dispose()


api = FastAPI(lifespan=lifespan(app, migrate=True, worker=True, inside=database))


async def session(request: Request) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(request.state.engine, expire_on_commit=False) as opened:
        yield opened


class NewOrder(BaseModel):
    article: str
    total: Decimal = Field(gt=0, decimal_places=2)


@api.post("/orders", status_code=201)
async def place(order: NewOrder, session: Annotated[AsyncSession, Depends(session)]) -> dict[str, UUID]:
    """The order and its event commit together. Out of stock: neither is ever seen."""
    placed = Order(id=uuid4(), article=order.article, total=order.total)
    session.add(placed)
    await app.publish(session, OrderPlaced(order_id=placed.id, total=placed.total))
    if order.article == "unicorn":
        raise HTTPException(409, "out of stock")
    await session.commit()
    return {"order_id": placed.id}


@api.get("/invoices")
async def invoices(session: Annotated[AsyncSession, Depends(session)]) -> list[dict[str, str]]:
    found = await session.scalars(select(Invoice).order_by(Invoice.total))
    return [{"order_id": str(each.order_id), "total": str(each.total)} for each in found]
