-- allow_content_class: let events have another content class. It is kept as the setting content_class.NAME, whose value says like
-- which of the four it is treated: 0 public, 1 internal, 2 confidential, 3 restricted. Audited. False: it was allowed before.
create or replace function /*schema*/allow_content_class(
    p_name text, p_like text default 'restricted', p_by text default null, p_reason text default null
) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    four  text[] := '{public,internal,confidential,restricted}';
    level bigint := array_position(four, p_like) - 1;
begin
    if level is null then
        raise 'a content class is treated like one of %, not like %', array_to_string(four, ', '), quote_nullable(left(p_like, 100))
            using errcode = 'OR010';
    end if;
    if p_name is null or p_name !~ '^[a-z][a-z0-9_]{0,62}$' or p_name = any (four) then
        raise 'a new content class is a lower-case word of at most 63 letters, digits and _, and none of %; not %',
            array_to_string(four, ', '), quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    insert into /*schema*/setting (name, value, least, greatest) values ('content_class.' || p_name, level, 0, 3)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform /*schema*/note('allow_content_class', p_by, p_reason, null, null,
                           jsonb_build_object('content_class', p_name, 'like', p_like));
    return true;
end
$$;
