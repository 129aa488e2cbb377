-- fitting: how many of these payloads one batch may hold: those up to batch_bytes, the last of which may exceed it. Null: all, and
-- there is room for more.
-- p_payloads: the query of the payloads, in their order; $1 = p_ids. It must not unpack them: this function does, one by one, and
-- stops where the batch is full. A sum over all of them would unpack 1,000 payloads of 64 MB for every one that fits.
-- Sees what the statement that calls it sees.
create or replace function /*schema*/fitting(p_payloads text, p_ids bigint[]) returns integer
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    payload jsonb;
    count   integer := 0;
    bytes   bigint := 0;
begin
    for payload in execute p_payloads using p_ids loop
        count := count + 1;
        bytes := bytes + coalesce(/*schema*/stored_bytes(payload), 0);
        if bytes >= /*schema*/batch_bytes() then
            return count;
        end if;
    end loop;
    return null;
end
$$;
