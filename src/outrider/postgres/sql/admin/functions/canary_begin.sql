-- canary_begin: register the subscription of a canary, which only its own event reaches. upkeep_log removes one that was cut off.
-- At most 100 at a time: each has a cursor row and two sequences.
-- Use: as the first statement of a READ COMMITTED transaction. Then canary_send, in a transaction of its own, and canary_end.
create or replace function /*schema*/canary_begin(p_name text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
begin
    perform /*schema*/sees_all(true);
    if p_name !~ '^outrider[.]canary_[0-9a-f]{8}$' then
        raise 'a canary is named outrider.canary_ and 8 hexadecimal digits, not %', p_name using errcode = 'OR001';
    end if;
    if (select count(*) from /*schema*/subscription as s where s.name ~ '^outrider[.]canary_[0-9a-f]{8}$') >= 100 then
        raise 'there are 100 canaries already' using errcode = 'OR001', hint = 'Upkeep removes those that are 10 minutes old.';
    end if;
    perform /*schema*/register(p_name, 'handler', 'outrider', array[p_name]);
end
$$;
