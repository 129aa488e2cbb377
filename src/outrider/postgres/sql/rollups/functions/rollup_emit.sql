-- rollup_emit: make events of staged rows, in one statement, and mark the rows.
-- A group of at least p_threshold rows becomes one rollup event, with the carried fields in which all rows agree and the declared
-- fields of the row that was staged first. The rows of other groups become one event each. Then the user's notification table is
-- written, if there is one. The caller holds the rollup's lock and has chosen whole groups. Data that cannot be
-- emitted raise an error.
create or replace function /*schema*/rollup_emit(
    p_rollup /*schema*/rollup, p_ids bigint[], p_threshold integer,
    out groups_emitted bigint, out pieces_emitted bigint, out conflicts_skipped bigint, out rows_marked bigint
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    set plan_cache_mode = force_custom_plan
as $$
declare
    spec  jsonb := p_rollup.spec;
    seqs  bigint[];
    noted bigint;
begin
    with piece as materialized (
        select p.id, p.workspace_id, p.group_key, p.carried, p.staged_at, count(*) over of_group as size,
               min(p.id) over of_group as first
        from unnest(p_ids) as asked (id) join /*schema*/rollup_pending as p on p.id = asked.id
        window of_group as (
            partition by p.workspace_id, p.group_key, case when p.group_key is null then p.id end)
    ),
    alike as (
        select field.first, jsonb_object_agg(field.name, field.value) as carried
        from (select piece.first, each.key as name, (array_agg(each.value))[1] as value
              from piece cross join lateral jsonb_each(piece.carried) as each
              where piece.size >= p_threshold
              group by piece.first, each.key, piece.size
              having count(*) = piece.size and count(distinct each.value) = 1) as field
        group by field.first
    ),
    leader as (
        select piece.id, jsonb_object_agg(field.name, piece.carried -> field.carried) as fields
        from piece cross join jsonb_each_text(spec -> 'first') as field (name, carried)
        where piece.id = piece.first and piece.size >= p_threshold
        group by piece.id
    ),
    unit as (
        select piece.id as first, false as grouped, piece.workspace_id, piece.group_key, piece.carried as payload
        from piece where piece.size < p_threshold
        union all
        select whole.first, true, whole.workspace_id, whole.group_key,
               coalesce(alike.carried, '{}') || coalesce(leader.fields, '{}') || jsonb_build_object(
                   'key', whole.group_key, 'piece_count', whole.size, 'first_at', whole.first_at, 'last_at', whole.last_at)
        from (select piece.first, piece.workspace_id, piece.group_key, piece.size, min(piece.staged_at) as first_at,
                     max(piece.staged_at) as last_at
              from piece where piece.size >= p_threshold
              group by piece.first, piece.workspace_id, piece.group_key, piece.size) as whole
        left join alike on alike.first = whole.first
        left join leader on leader.id = whole.first
    ),
    emitted as (
        insert into /*schema*/outbox (
            event_type, event_version, source, workspace_id, aggregate_id, payload, idempotency_key)
        select spec ->> case when unit.grouped then 'rollup' else 'single' end,
               (spec ->> case when unit.grouped then 'rollup_version' else 'single_version' end)::integer,
               p_rollup.context, unit.workspace_id, unit.group_key, unit.payload, p_rollup.name || ':' || unit.first
        from unit order by unit.first
        returning seq, id, idempotency_key
    ),
    marked as (
        update /*schema*/rollup_pending as p
        set processed_at = clock_timestamp(), event_id = emitted.id
        from piece join emitted
            on emitted.idempotency_key = p_rollup.name || ':'
                                         || case when piece.size >= p_threshold then piece.first else piece.id end
        where p.id = piece.id
        returning piece.id, piece.first, piece.size
    )
    select (select array_agg(emitted.seq) from emitted),
           count(*) filter (where marked.size >= p_threshold and marked.id = marked.first),
           count(*) filter (where marked.size < p_threshold), count(*)
    into seqs, groups_emitted, pieces_emitted, rows_marked
    from marked;
    conflicts_skipped := 0;
    if spec ? 'notify' and seqs is not null then
        execute format('select /*schema*/%I($1)', 'rollup_note_' || p_rollup.slug) using seqs into noted;
        conflicts_skipped := cardinality(seqs) - noted;
    end if;
end
$$;
