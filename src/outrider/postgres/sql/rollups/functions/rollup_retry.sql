-- rollup_retry: stage rows that were set aside again, due as before. Returns how many. Audited.
create or replace function /*schema*/rollup_retry(p_name text, p_by text default null, p_reason text default null) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    back bigint;
begin
    if not exists (select from /*schema*/rollup as r where r.name = p_name) then
        raise 'there is no rollup %', quote_nullable(p_name) using errcode = 'OR007';
    end if;
    update /*schema*/rollup_pending as p set set_aside_at = null, error = null
    where p.rollup = p_name and p.processed_at is null and p.set_aside_at is not null;
    get diagnostics back = row_count;
    perform /*schema*/note('rollup_retry', p_by, p_reason, null, null, jsonb_build_object('rollup', p_name, 'rows', back));
    return back;
end
$$;
