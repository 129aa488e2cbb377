-- log_home: a number for where the log lives: in which cluster, since which restore. Transaction ids of a cursor count only there.
-- The cluster's identifier does not suffice: a physical clone has the same one, and its log may be restored into the original. So
-- it is mixed with the id of the transaction that wrote the oldest row of the table migration. That row is never updated, and every
-- kind of restore writes it anew.
-- Runs as the owner: whoever takes need not read that table.
create or replace function /*schema*/log_home() returns bigint
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (select hashint8extended((pg_control_system()).system_identifier, m.xmin::text::bigint)
            from /*schema*/migration as m order by m.version limit 1);
end
$$;
