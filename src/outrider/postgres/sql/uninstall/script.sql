-- script: uninstall as one statement, for programs that speak only SQL (an Alembic downgrade).
-- It refuses as the command does, and has no --force. It locks first and then looks, so it sees what is published in between.
-- {commands} and the like are the other files here; {version} is the newest migration.
do $outrider$
declare
    v_command  record;
    v_said     text;
    v_patience text := current_setting('lock_timeout');
begin
    if to_regclass('/*schema*/migration') is null then
        return;
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'the schema "%%" cannot be removed in a %% transaction: it would not see what is published while it waits for the locks',
            %(schema)s, current_setting('transaction_isolation') using hint = 'Begin it with ISOLATION LEVEL READ COMMITTED.';
    end if;
    perform set_config('lock_timeout', %(patience)s, true);
    {hold}
    for v_command in {commands} loop
        if v_command.step = 'hold' then
            execute v_command.text;
        end if;
    end loop;
    if (select max(m.version) from /*schema*/migration as m) <> {version} then
        raise 'the schema "%%" is not at version {version}', %(schema)s
            using hint = 'Run: outrider uninstall, then: alembic stamp.';
    end if;
    v_said := (select string_agg(live.worker, '; ') from ({workers}) as live);
    if v_said is not null then
        raise 'workers use the schema "%%": %%', %(schema)s, v_said using hint = 'Stop them.';
    end if;
    v_said := (select string_agg(o.name || ': ' || o.unread || ' unread, ' || o.parked || ' waiting, ' || o.dead
                                 || ' dead letters', '; ')
               from ({owed}) as o where o.unread + o.parked + o.dead > 0);
    if v_said is not null then
        raise 'the schema "%%" has events that subscriptions still want: %%', %(schema)s, v_said
            using hint = 'Let its workers handle them; or lose them with: outrider uninstall --force, then: alembic stamp.';
    end if;
    v_said := (select string_agg(r.name || ': ' || r.waiting || ' rows wait', '; ') from ({rollups}) as r);
    if v_said is not null then
        raise 'the schema "%%" has rollups that are not uninstalled: %%', %(schema)s, v_said
            using hint = 'For each run: outrider rollup uninstall NAME; before it outrider rollup run NAME --flush if rows wait.';
    end if;
    v_said := (select string_agg(f.what, '; ') from ({foreign}) as f where f.kind <> 'mention');
    if v_said is not null then
        raise 'the schema "%%" contains, or is needed by, objects that are not Outrider''s: %%', %(schema)s, v_said
            using hint = 'Drop or move them yourself: nothing here cascades.';
    end if;
    for v_command in {commands} loop
        if v_command.step = 'drop' then
            execute v_command.text;
        end if;
    end loop;
    perform set_config('lock_timeout', v_patience, true);
end
$outrider$
