-- make_segment: create an empty segment that is not yet attached, and return its name.
-- Its rows are written once and then only read, so they are frozen early. Without `including identity`: the log as a whole draws
-- the positions.
create or replace function /*schema*/make_segment(p_first bigint) returns text
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    made text := 'outbox_from_' || p_first;
begin
    execute format(
        'create table /*schema*/%I (like /*schema*/outbox including defaults including constraints including generated '
        'including indexes including statistics including storage including compression) '
        'with (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_insert_threshold = 10000, '
        'autovacuum_freeze_min_age = 0)', made);
    -- Where tenants are isolated, only the owner may read it directly.
    if (select c.relrowsecurity from pg_class as c where c.oid = '/*schema*/outbox'::regclass) then
        execute format('alter table /*schema*/%I enable row level security', made);
    end if;
    return made;
end
$$;
