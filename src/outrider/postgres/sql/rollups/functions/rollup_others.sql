-- rollup_others: the triggers of a table that are not ours, each with a fingerprint of its definition and its function's text.
create or replace function /*schema*/rollup_others(p_source regclass) returns jsonb
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce((
        select jsonb_object_agg(t.tgname, md5(pg_get_triggerdef(t.oid) || p.prosrc || t.tgenabled::text))
        from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
        where t.tgrelid = p_source and not t.tgisinternal and not starts_with(t.tgname, 'outrider_rollup_')), '{}');
end
$$;
