-- bounded: true, or an error that says what is too long in a payload. Only its text counts, which is how every reader gets it.
-- jsonb keeps 1e131071 in 16 bytes and prints 131,072 digits. So a payload may have 128 MiB as text (twice the largest payload
-- limit), a number 8,192 digits, and beyond 8 KiB the text may be at most 32 times as long as what is stored: lists of the longest
-- floats reach 20. Readers rely on the last to bound a batch by what is stored of it (take). Raises, so that the writer reads why.
create or replace function /*schema*/bounded(p_payload jsonb) returns boolean
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    stored constant bigint := pg_column_size(p_payload #> '{}');  -- a copy that is not compressed
    said   text;
    bytes  bytea;
begin
    begin
        said := p_payload::text;
    exception when program_limit_exceeded then
        said := null;
    end;
    if said is null or octet_length(said) > 134217728 then
        raise 'the payload has % bytes as text, the limit is 134217728', coalesce(octet_length(said)::text, 'more than 1073741823')
            using errcode = 'check_violation', hint = 'Keep large content elsewhere and publish a reference.';
    end if;
    if octet_length(said) <= 8192 then
        return true;
    end if;
    -- A number of more than 8,192 digits fills at least one of these windows; so does a long text of digits.
    bytes := convert_to(said, getdatabaseencoding());
    for place in 1 .. octet_length(bytes) by 7600 loop
        if rtrim(substr(bytes, place, 512), '0123456789.'::bytea) = '' then
            if exists (select from jsonb_path_query(p_payload, 'strict $.** ? (@.type() == "number")') as number
                       where octet_length(translate(number::text, '-.', '')) > 8192) then
                raise 'a number of the payload has more than 8192 digits'
                    using errcode = 'check_violation', hint = 'Write it as a string.';
            end if;
            exit;
        end if;
    end loop;
    if octet_length(said) > 32 * stored then
        raise 'the payload is stored in % bytes and has % as text: numbers with an exponent are written in full', stored,
            octet_length(said) using errcode = 'check_violation', hint = 'Write such numbers as strings.';
    end if;
    return true;
end
$$;
