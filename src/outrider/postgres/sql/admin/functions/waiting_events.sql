-- waiting_events: the events that handlers and relays will try again, by subscription, generation, partition and time, at most p_limit.
-- Each with how many events of its key wait behind it, counted up to p_most: waiting_behind lists them. In total order (ordering)
-- all later events wait, and most of them are not read from the log yet.
-- p_after: the place of the last row of the page before.
-- Reads:  delivery_due, as many rows as it returns; delivery_line, as many as it counts.
create or replace function /*schema*/waiting_events(
    p_subscription text default null, p_after text default null, p_limit integer default 50, p_most integer default 1000
) returns table (
    subscription text, event_id uuid, seq bigint, event_type text, key text, attempts integer, run_at timestamptz, code text,
    error text, behind bigint, ordering text, generation bigint, place text
)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_sort = off
    set jit = off
as $$
#variable_conflict use_column
declare
    after constant text[] := regexp_match(p_after, '^(.+)/(\d{1,18})/(\d{1,9})/([\d:.T-]{26}Z)/(\d{1,18})$');
begin
    perform /*schema*/sees_all();
    if p_after is not null and after is null then
        raise '% is not the place of a waiting event', quote_nullable(left(p_after, 100)) using errcode = 'OR010';
    end if;
    return query
    select d.subscription, d.event_id, d.seq, d.event_type, d.ordering_key, d.attempts, d.run_at, d.last_error_code, d.last_error,
           (select count(*) from (
                select from /*schema*/delivery as f
                where f.subscription = d.subscription and f.generation = d.generation and f.ordering_key = d.ordering_key
                  and f.status = 'pending' and f.seq > d.seq
                limit p_most) as behind),
           s.ordering, d.generation,
           format('%s/%s/%s/%s/%s', d.subscription, d.generation, d.partition,
                  to_char(d.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.USZ'), d.id)
    from /*schema*/subscription as s
    cross join lateral (select coalesce(s.name = after[1], false) as first) as page
    cross join lateral (
        select d.* from /*schema*/delivery as d
        where d.subscription = s.name and d.status = 'pending' and d.head and d.reached
          and (d.generation, d.partition, d.run_at, d.id) > (
              case when page.first then after[2]::bigint else -1 end, case when page.first then after[3]::integer else -1 end,
              case when page.first then after[4]::timestamptz else '-infinity' end,
              case when page.first then after[5]::bigint else -1 end)
        order by d.generation, d.partition, d.run_at, d.id limit p_limit) as d
    where (p_subscription is null or s.name = p_subscription) and (after is null or s.name >= after[1])
    order by s.name, d.generation, d.partition, d.run_at, d.id limit p_limit;
end
$$;
