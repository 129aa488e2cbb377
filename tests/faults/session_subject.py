"""The subject whose handlers write through sessions of SQLAlchemy: all three kinds, the same names and effects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Identity
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tests.faults.subject import KEYED, LOOSE, POLL, RETRY, TOTAL, Acts, Fact, tracing

from outrider import Envelope, HandlerContext, Outrider, SyncHandlerContext


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"

    at: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    subscription: Mapped[str]
    key: Mapped[str]
    n: Mapped[int] = mapped_column(BigInteger)
    seq: Mapped[int] = mapped_column(BigInteger)


def effect(name: str, fact: Fact, envelope: Envelope) -> Effect:
    return Effect(subscription=name, key=fact.key, n=fact.n, seq=envelope.seq)


def make(dsn: str, outside: Path | None = None, **settings: Any) -> Outrider:
    app = Outrider(context="fault", dsn=dsn, **({"poll": POLL} | settings))
    act = Acts()

    leave_trace = tracing(outside)

    @app.handler(Fact, name=KEYED, partitions=4, retry=RETRY)
    async def keyed(fact: Fact, ctx: HandlerContext, session: AsyncSession) -> None:
        session.add(effect(KEYED, fact, ctx.envelope))
        await session.flush()
        leave_trace(KEYED, fact)
        act(KEYED, fact)

    @app.handler(Fact, name=LOOSE, order="none", retry=RETRY)
    async def loose(facts: list[Fact], ctx: HandlerContext, session: AsyncSession) -> None:
        session.add_all(effect(LOOSE, fact, each) for fact, each in zip(facts, ctx.envelopes, strict=True))
        await session.commit()
        leave_trace(LOOSE, *facts)
        for fact in facts:
            act(LOOSE, fact)

    @app.handler(Fact, name=TOTAL, order="total", retry=RETRY)
    def total(fact: Fact, session: Session, ctx: SyncHandlerContext) -> None:
        session.add(effect(TOTAL, fact, ctx.envelope))
        leave_trace(TOTAL, fact)
        act(TOTAL, fact)

    return app
