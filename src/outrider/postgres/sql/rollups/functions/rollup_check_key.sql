-- rollup_check_key: the part of rollup_preflight that finds out whether rows have their key when they are inserted: by the columns, by
-- the functions of this database that write the table, and by what was staged. Rows without a key are not grouped.
create or replace function /*schema*/rollup_check_key(p_spec jsonb)
    returns table (topic text, passed boolean, value text, detail text, blocks boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    part    constant record := /*schema*/rollup_parts(p_spec);
    literal constant text := '(\W)';   -- characters that a pattern must escape
    counts  record;
    item    record;
begin
    topic := 'stable key'; blocks := false;
    select count(*) as staged, count(p.group_key) as keyed into counts
    from (select p.group_key from /*schema*/rollup_pending as p where p.rollup = p_spec ->> 'name'
          order by p.id desc limit 10000) as p;
    if p_spec ->> 'table' is null then
        value := 'BEFORE'; detail := 'an event does not change';
    elsif exists (select from pg_attribute as a where a.attrelid = part.key_table and a.attname = any (part.key_columns)
                    and not a.attisdropped and (a.attnotnull or a.atthasdef)) then
        value := 'BEFORE'; detail := 'a column of it is always set';
    else
        value := 'UNKNOWN';
        detail := 'no function of this database inserts into ' || part.key_table::text || ' with a column of the key';
        for item in
            select p.oid::regprocedure::text as name,
                   p.prosrc ~* format('insert\s+into\s+%s\s*(as\s+\w+\s*)?\([^)]*(\W)(%s)\W', c.called, k.called) as inserts,
                   p.prosrc ~* format('update\s+(only\s+)?%s\s+[^;]*(\W)(%s)"?\s*=', c.called, k.called) as updates
            from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
            cross join (select format('(\w+\.|"[^.]+"\.)?"?%s"?', regexp_replace(
                                          replace(c.relname, '"', '""'), literal, '\\\1', 'g')) as called
                        from pg_class as c where c.oid = part.key_table) as c
            cross join (select string_agg(regexp_replace(replace(name, '"', '""'), literal, '\\\1', 'g'), '|') as called
                        from unnest(part.key_columns) as name) as k
            where n.nspname not in ('pg_catalog', 'information_schema') and p.prokind in ('f', 'p') and k.called <> ''
              and p.prosrc ~* format('insert\s+into\s+%s(\W|$)', c.called)
            order by 2 desc, 1
        loop
            if item.inserts and value = 'UNKNOWN' then
                value := 'BEFORE'; detail := format('%s inserts it', item.name);
            elsif item.updates and not item.inserts then
                value := 'SAME_CALL';
                detail := format('%s sets it only after it has inserted the row: insert it with the row', item.name);
            end if;
        end loop;
    end if;
    if value = 'UNKNOWN' and counts.staged > 0 and counts.keyed = counts.staged then
        value := 'BEFORE'; detail := format('all of the last %s rows had it', counts.staged);
    end if;
    passed := value = 'BEFORE' and counts.keyed = counts.staged;
    if counts.keyed < counts.staged then
        detail := format('%s; grouping is PARTIAL: %s of the last %s rows had none, and stay single',
                         detail, counts.staged - counts.keyed, counts.staged);
    elsif not passed then
        detail := detail || '; grouping is PARTIAL: rows without it stay single';
    else
        detail := detail || '; grouping is FULL';
    end if;
    return next;
end
$$;
