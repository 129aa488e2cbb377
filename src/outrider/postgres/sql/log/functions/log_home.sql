-- log_home: whose transaction ids the cursors' are: those of this cluster, since this log came into it.
-- The identifier of the cluster does not suffice: a physical clone has the same one, and its log may be restored into the
-- original. So it is mixed with the id of the transaction that wrote the oldest row of the ledger of migrations, which is
-- never updated: a restore, of whatever kind, writes that row anew.
-- With the rights of the owner: whoever takes need not read the ledger.
create or replace function /*schema*/log_home() returns bigint
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (select hashint8extended(here.system_identifier, oldest.xmin::text::bigint)
            from pg_control_system() as here,
                 (select m.xmin from /*schema*/migration as m order by m.version limit 1) as oldest);
end
$$;
