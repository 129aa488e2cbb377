-- hold_partitions: lock the cursors of the partitions of these deliveries, and of the same partitions in another generation.
-- Raises OR006 if a subscription has no cursors of that generation. The caller is replay.
create or replace function /*schema*/hold_partitions(p_deliveries bigint[], p_new_generation bigint) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    places bigint[];
    held   bigint[] := '{}';
    wrong  text;
begin
    -- Again after the wait: partitions may have doubled, or a generation was opened or folded.
    loop
        places := array(
            select distinct c.id from /*schema*/delivery as d join /*schema*/cursor as c
                on c.subscription = d.subscription and c.partition = d.partition
               and c.generation in (d.generation, coalesce(p_new_generation, d.generation))
            where d.id = any (p_deliveries));
        exit when places <@ held;
        held := array(select locked.id from (
            select c.id from /*schema*/cursor as c where c.id = any (places)
            order by c.subscription, c.generation, c.partition for update) as locked);
    end loop;
    -- Under the lock, so that the generation stays.
    wrong := (select d.subscription from /*schema*/delivery as d
              where d.id = any (p_deliveries) and p_new_generation is not null
                and not exists (select from /*schema*/cursor as c
                                where c.subscription = d.subscription and c.generation = p_new_generation)
              limit 1);
    if wrong is not null then
        raise 'no worker of generation % has started for "%"', p_new_generation, wrong
            using errcode = 'OR006', hint = format('Its generations are %s. Start workers of that generation, or leave it out.', (
                select string_agg(distinct c.generation::text, ', ') from /*schema*/cursor as c where c.subscription = wrong));
    end if;
end
$$;
