-- refuse_served: raise an error while workers serve a subscription.
create or replace function /*schema*/refuse_served(p_name text) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    workers bigint := (select count(*) from /*schema*/worker as w
                       where p_name = any (w.subscriptions) and /*schema*/is_live(w.seen_at));
begin
    if workers > 0 then
        raise '% served % within the last 30 s: stop it first, or use --force, and it fails at its next take',
            case workers when 1 then 'a worker' else workers || ' workers' end, p_name using errcode = 'OR010';
    end if;
end
$$;
