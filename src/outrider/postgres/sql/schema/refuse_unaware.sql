-- refuse_unaware: in a script, before the breaking migration {version}: raise an error while workers run that do not know it.
do $outrider_unaware$
declare
    v_who text;
begin
    v_who := (select string_agg(live.place || ' (' || live.code || ')', '; ') from (
{live_workers}
    ) as live where live.knows < {version});
    if v_who is not null then
        raise 'migration {version} breaks code that does not know it, and such workers were seen within 30 s: %', v_who
            using hint = 'Stop them and run this again; or run outrider migrate --force, which breaks them.';
    end if;
end
$outrider_unaware$;
