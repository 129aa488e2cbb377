-- refuse_unbounded_payload: the trigger of delivery, whose payloads were edited for a replay. See bounded.
create or replace function /*schema*/refuse_unbounded_payload() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if new.payload is distinct from old.payload then
        perform /*schema*/bounded(new.payload);
    end if;
    return new;
end
$$;
