-- close_kept: mark jobs that open transactions keep (on_conflict keep), and that cannot be claimed before these end, as closed.
-- From then on an enqueue with the same unique key creates another job, so this one does not wait for later transactions too.
-- p_until: only jobs up to this claim_at, whose turn it was. p_suspects: the types whose suspects the caller would have claimed too.
-- Locks:  those jobs, SKIP LOCKED.
-- Reads:  the next 500 claimable jobs of each lane, and the next 500 suspects of each type: the session's next call continues after
--         them, so that however many jobs one transaction holds, it does not hide those of others.
create or replace function /*schema*/close_kept(p_lanes /*schema*/lane[], p_suspects text[], p_until timestamp) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    -- By lane, and by type for suspects, the job at which the session's last call stopped.
    after   jsonb := coalesce(nullif(current_setting('outrider.kept', true), ''), '{}');
    stopped jsonb;
    kept    bigint[];
    free    bigint[];
begin
    with page as materialized (
        select l::text as place, j.* from unnest(p_lanes) as l
        cross join lateral (
            select j.id, /*schema*/claim_at(j), j.unique_key is not null and not j.closed as open from /*schema*/job as j
            where /*schema*/in_lane(j, l) and /*schema*/claim_at(j) <= p_until
              and (/*schema*/claim_at(j), j.id) > (coalesce((after -> l::text ->> 0)::timestamp, '-infinity'),
                                                   coalesce((after -> l::text ->> 1)::bigint, 0))
            order by /*schema*/claim_at(j), j.id limit 500) as j
        union all
        select n.name, j.* from unnest(p_suspects) as n (name)
        cross join lateral (
            select j.id, /*schema*/claim_at(j), j.unique_key is not null and not j.closed as open from /*schema*/job as j
            where j.subscription = n.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
              and (/*schema*/claim_at(j), j.id) > (coalesce((after -> n.name ->> 0)::timestamp, '-infinity'),
                                                   coalesce((after -> n.name ->> 1)::bigint, 0))
            order by /*schema*/claim_at(j), j.id limit 500) as j
    )
    select array(select page.id from page where page.open),
           -- Where a page was full. The other places that were looked at begin anew.
           (select jsonb_object_agg(last.place, last.job)
            from (select distinct on (p.place) p.place, jsonb_build_array(p.claim_at, p.id) as job,
                         count(*) over (partition by p.place) as jobs
                  from page as p order by p.place, p.claim_at desc, p.id desc) as last
            where last.jobs = 500)
    into kept, stopped;
    stopped := after - coalesce(p_lanes::text[], '{}') - coalesce(p_suspects, '{}') || coalesce(stopped, '{}');
    if stopped <> after then
        perform set_config('outrider.kept', stopped::text, false);
    end if;
    if kept = '{}' then
        return;
    end if;
    -- A transaction that keeps a job holds FOR KEY SHARE: we can update the row, but not lock it FOR UPDATE.
    kept := array(select j.id from /*schema*/job as j
                  where j.id = any (kept) and j.status = 'pending' for no key update skip locked);
    free := array(select j.id from /*schema*/job as j where j.id = any (kept) for update skip locked);
    update /*schema*/job as j set closed = true where j.id = any (kept) and j.id <> all (free);
end
$$;
