"""The SQL of a takeover, made of the app's declaration."""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql

from outrider.event import spec_of
from outrider.takeover import Takeover

TRIGGER = "outrider_takeover"
RECENT = "10 minutes"
MOST = 1_000_000
"""Rows are counted up to this number."""


class TakeoverSql:
    """The SQL of one takeover. `plan` shows it to the operator."""

    def __init__(self, takeover: Takeover, schema: str) -> None:
        self._takeover = takeover
        self._table = sql.Identifier(*takeover.name.split("."))
        self._schema = schema
        self.source = takeover.slug

    def compose(self, text: LiteralString, **parts: sql.Composable) -> sql.Composed:
        given = self._takeover
        fixed: dict[str, sql.Composable] = {
            "table": self._table,
            "name": sql.Literal(given.name),
            "source": sql.Literal(self.source),
            "id": sql.Identifier(given.id),
            "owed": _raw(given.owed),
            "free": _raw(given.free),
            "done": _raw(given.done),
            "order": _raw(given.order or f'"{given.id}"'),
            "row": sql.Identifier(self._schema, f"{given.slug}_row"),
            "function": sql.Identifier(self._schema, given.slug),
            "trigger": sql.Identifier(TRIGGER),
            "takeover": sql.Identifier(self._schema, "takeover"),
            "refused": sql.Identifier(self._schema, "takeover_refused"),
            "outbox": sql.Identifier(self._schema, "outbox"),
        }
        return sql.SQL(text).format(**(fixed | parts))

    @property
    def _call(self) -> sql.Composed:
        """Publishes or enqueues what the row `r` says."""
        given = self._takeover
        arguments = {"key": (given.key, "text"), "workspace_id": (given.workspace_id, "text")}
        if given.job is None:
            verb, first = "publish", sql.Composed([_raw(given.type or "")])
            arguments |= {
                "idempotency_key": (f'"{given.id}"', "text"),
                "occurred_at": (given.occurred_at, "timestamptz"),
            }
        else:
            verb, first = "enqueue", sql.Composed([sql.Literal(spec_of(given.job).type)])
            arguments |= {"priority": (given.priority, "integer"), "run_at": (given.run_at, "timestamptz")}
        return sql.SQL("{}(({})::text, ({})::jsonb, source => {}{})").format(
            sql.Identifier(self._schema, verb),
            first,
            _raw(given.payload),
            sql.Literal(self.source),
            sql.SQL("").join(
                sql.SQL(", {} => ({})::{}").format(sql.Identifier(name), _raw(text), _raw(kind))
                for name, (text, kind) in arguments.items()
                if text is not None
            ),
        )

    def take_row(self) -> sql.Composed:
        """One row changes hands. Not p_take: it is only tried out. A row that cannot is noted, and nobody's insert fails."""
        return self.compose(
            """create or replace function {row}(p_row {table}, p_take boolean) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $takeover$
#variable_conflict use_column
declare
    owed boolean;
begin
    perform {call} from (select (p_row).*) as r;
    perform set_config('search_path', {path}, true); -- the table's triggers may name its neighbours without their schema
    update {table} set {done} where {id} = (p_row).{id} returning coalesce(({owed}), false) into owed;
    if owed is distinct from false then
        raise 'the row is still owed after done=: it would be dispatched again';
    end if;
    if not p_take then
        raise 'rehearsed' using errcode = 'OR00T';
    end if;
    return true;
exception
    when sqlstate 'OR00T' then
        return false;
    when serialization_failure or deadlock_detected or lock_not_available then
        raise;
    when others then
        insert into {refused} (name, row_id, error) values ({name}, (p_row).{id}::text, left(sqlerrm, 2000))
        on conflict (name, row_id) do update set error = excluded.error, at = now();
        return false;
end
$takeover$""",
            call=self._call,
            path=sql.Literal("pg_catalog, " + self._takeover.name.split(".")[0] + ", pg_temp"),
        )

    def on_insert(self, *, take: bool) -> sql.Composed:
        return self.compose(
            """create or replace function {function}() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $takeover$
begin
    if exists (select from (select new.*) as r where ({owed})) then
        perform {row}(new, {take});
    end if;
    return null;
end
$takeover$""",
            take=sql.Literal(take),
        )

    def trigger(self) -> sql.Composed:
        return self.compose(
            "create or replace trigger {trigger} after insert on {table} for each row execute function {function}()"
        )

    def removal(self) -> list[sql.Composed]:
        return [
            self.compose("drop trigger if exists {trigger} on {table}"),
            self.compose("drop function if exists {function}()"),
            self.compose("drop function if exists {row}({table}, boolean)"),
        ]

    def lock(self) -> sql.Composed:
        """Waits for every transaction that has written to the table, or locked rows of it."""
        return self.compose("lock table {table} in exclusive mode")

    def bring(self, limit: int) -> sql.Composed:
        return self.compose(
            """select count(*), count(*) filter (where {row}(owed.r, true)) from (
    select r from {table} as r
    where ({owed}) and ({free})
      and not exists (select from {refused} as f where f.name = {name} and f.row_id = r.{id}::text)
    order by {order} limit {limit} for update skip locked) as owed""",
            limit=sql.Literal(limit),
        )

    def count(self) -> sql.Composed:
        return self.compose(
            """select count(*), count(*) filter (where not ({free})) from (
    select * from {table} where ({owed}) limit {most}) as r""",
            most=sql.Literal(MOST),
        )

    def refusals(self) -> sql.Composed:
        return self.compose(
            "select row_id, error from {refused} where name = {name} order by at desc, row_id limit 100"
        )

    def forget_refusals(self) -> sql.Composed:
        return self.compose("delete from {refused} where name = {name}")

    def known(self) -> sql.Composed:
        return self.compose("select phase, brought, log_start, cut_at from {takeover} where name = {name}")

    def made(self) -> sql.Composed:
        """How many; of them, those of rows that producers inserted in the last 10 minutes; doubles."""
        since = self.compose(
            "(select greatest(now() - {recent}::interval, cut_at) from {takeover} where name = {name})",
            recent=sql.Literal(RECENT),
        )
        if self._takeover.job is not None:
            return self.compose(
                "select count(*), count(*) filter (where created_at > {since}), 0 from {jobs} "
                "where source = {source} and subscription = {type}",
                since=since,
                jobs=sql.Identifier(self._schema, "job"),
                type=sql.Literal(spec_of(self._takeover.job).type),
            )
        # By the time in their ids: the events have the times of their rows.
        return self.compose(
            "select count(*), count(*) filter (where id > {smallest}), count(*) - count(distinct idempotency_key) "
            "from {outbox} where seq >= %s and source = {source}",
            smallest=sql.SQL(
                "(lpad(to_hex((extract(epoch from {}) * 1000)::bigint), 12, '0') || repeat('f', 20))::uuid"
            ).format(since),
        )

    def states(self) -> sql.Composed:
        return self.compose(
            "select e.subscription, e.status, count(*) from {outbox} as o join {status} as e on e.seq = o.seq "
            "where o.seq >= %s and o.source = {source} group by 1, 2 order by 1, 2",
            status=sql.Identifier(self._schema, "event_status"),
        )

    def holders(self) -> sql.Composed:
        return self.compose(
            """select coalesce(a.pid, 0), coalesce(a.application_name, ''), coalesce(a.state, 'prepared transaction'),
       coalesce(extract(epoch from clock_timestamp() - a.xact_start), 0)::double precision
from pg_locks as l left join pg_stat_activity as a on a.pid = l.pid
where l.relation = {name}::regclass and l.granted and l.pid is distinct from pg_backend_pid()
  and l.mode not in ('AccessShareLock')
order by 4 desc limit 5"""
        )

    def installation(self) -> list[sql.Composed]:
        return [self.take_row(), self.on_insert(take=False), *self.revocations(), self.trigger()]

    def revocations(self) -> list[sql.Composed]:
        """They run with the rights of the owner. A trigger needs no right to its function."""
        return [
            self.compose("revoke all on function {row}({table}, boolean) from public"),
            self.compose("revoke all on function {function}() from public"),
        ]


def _raw(text: str) -> sql.SQL:
    """SQL of the app's own declaration."""
    return sql.SQL(text)
