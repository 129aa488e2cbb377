-- inherit_grants: grant what a function needs now to every role that may call it, so that a migration does not lock out the roles of
-- running workers. Runs after a migration's functions. Roles without any of these privileges get nothing.
do $inherit$
declare
    granted record;
begin
    for granted in
        select distinct a.grantee::regrole as role, needs.objects
        from (values ('take', 'execute on function /*schema*/promote, /*schema*/failure, /*schema*/error_fingerprint, '
                              '/*schema*/open_generation, /*schema*/fold_generation, /*schema*/pass_over, /*schema*/count_take'),
                     ('take', 'execute on function /*schema*/lanes, /*schema*/in_lane, /*schema*/in_turn, /*schema*/admit_scheduled, '
                              '/*schema*/pick, /*schema*/pick_suspect'),
                     ('take', 'execute on function /*schema*/claim, /*schema*/claim_lane, /*schema*/lease, /*schema*/pick_limited, /*schema*/has_workers, '
                              '/*schema*/room, /*schema*/hold_limits, /*schema*/reap, /*schema*/release, /*schema*/rewrite, '
                              '/*schema*/admit, /*schema*/close_kept, /*schema*/wake_jobs, /*schema*/settle_jobs, /*schema*/settle_done, /*schema*/renew, /*schema*/route, /*schema*/make_jobs, /*schema*/fire, '
                              '/*schema*/enqueue_one, /*schema*/take_turns, /*schema*/tenants_due'),
                     ('take', 'execute on function /*schema*/relay_settle, '
                              '/*schema*/relay_open, /*schema*/relay_reject, /*schema*/relay_rewind, /*schema*/relay_ahead, '
                              '/*schema*/ingest'),
                     ('take', 'select on /*schema*/stream_mark, /*schema*/stream_ahead, /*schema*/stream_replayed'),
                     ('take', 'select, insert, update on /*schema*/stream'),
                     ('take', 'select, insert, update, delete on /*schema*/stream_refused'),
                     ('take', 'execute on function /*schema*/rollup_tick, /*schema*/rollup_work, /*schema*/rollup_settings'),
                     ('take', 'select on /*schema*/rollup, /*schema*/rollup_pending, /*schema*/rollup_log'),
                     -- Not the roles of `outrider roles`, but older ones of an application, which could run rollups.
                     ('relay_mark', 'execute on function /*schema*/rollup_run, /*schema*/rollup_work_noted'),
                     ('take', 'execute on function /*schema*/upkeep_begin, /*schema*/upkeep_segments, /*schema*/upkeep_log, '
                              '/*schema*/upkeep_receipts, /*schema*/upkeep_dead_letters, /*schema*/upkeep_traces, '
                              '/*schema*/upkeep_reap, /*schema*/overdue_rollups'),
                     ('take', 'select on /*schema*/owed, /*schema*/unfinished, /*schema*/segment, /*schema*/upkeep'),
                     ('take', 'insert (origin) on /*schema*/outbox'),
                     ('take', 'select on /*schema*/withdrawal'),
                     ('take', 'select, insert, update on /*schema*/schedule'),
                     ('take', 'update (missed, job, enqueued_at) on /*schema*/schedule'),
                     ('withdraw', 'execute on function /*schema*/pause_schedule, /*schema*/resume_schedule, /*schema*/run_schedule, '
                                  '/*schema*/change_jobs, /*schema*/jobs_page, /*schema*/waiting_events, /*schema*/waiting_behind'),
                     ('dead_letters', 'execute on function /*schema*/jobs_page, /*schema*/waiting_events, /*schema*/waiting_behind'),
                     ('take', 'usage on sequence /*schema*/lease_token, /*schema*/job_id_seq'),
                     ('take', 'execute on function /*schema*/relay_take, /*schema*/relay_hold, /*schema*/enqueue_onto, /*schema*/replace_closed'),
                     ('publish', 'execute on function /*schema*/notify'),
                     ('enqueue_one', 'execute on function /*schema*/notify'),
                     ('relay_take', 'execute on function /*schema*/notify, /*schema*/forget_workers, /*schema*/sample_due'),
                     ('take', 'execute on function /*schema*/forget_workers, /*schema*/sample_due, /*schema*/keep_sample'),
                     ('publish', 'execute on function /*schema*/enqueue, /*schema*/enqueue_one, /*schema*/enqueue_onto, /*schema*/replace_closed'),
                     ('enqueue', 'execute on function /*schema*/enqueue_one'),
                     ('enqueue_one', 'execute on function /*schema*/enqueue_onto, /*schema*/replace_closed, /*schema*/uuid7'),
                     ('rollup_tick', 'execute on function /*schema*/rollup_work'),
                     ('rollup_preflight', 'execute on function /*schema*/rollup_check_sql, /*schema*/rollup_check_key, /*schema*/rollup_parts'),
                     ('rollup_install', 'execute on function /*schema*/rollup_parts, /*schema*/rollup_lock, /*schema*/rollup_undo, '
                                        '/*schema*/rollup_undo_made'),
                     ('late_transactions', 'execute on function /*schema*/unread, /*schema*/log_home'),
                     ('withdraw', 'execute on function /*schema*/pause, /*schema*/pause_all, /*schema*/resume, '
                                  '/*schema*/resume_all, /*schema*/narrow, /*schema*/retire, /*schema*/rename, '
                                  '/*schema*/set_setting, /*schema*/allow_content_class, /*schema*/rollup_run, /*schema*/rollup_work_noted, /*schema*/note_adoption, /*schema*/attach_segment, '
                                  '/*schema*/tenant_page, /*schema*/note_export, /*schema*/erase, '
                                  '/*schema*/canary_begin, /*schema*/canary_send, /*schema*/canary_end, '
                                  '/*schema*/unread, /*schema*/late_transactions, /*schema*/log_home'),
                     ('outbox_replay', 'execute on function /*schema*/replay'),
                     ('outbox_replay', 'select on /*schema*/setting'),
                     ('dead_letters', 'select on /*schema*/segment, /*schema*/upkeep'),
                     ('withdraw', 'select on /*schema*/segment, /*schema*/upkeep'),
                     ('take', 'execute on function /*schema*/sees_all, /*schema*/sees_every_tenant'),
                     ('take', 'execute on function /*schema*/as_text, /*schema*/as_long_text, /*schema*/as_pretty_text, '
                              '/*schema*/stored_bytes, /*schema*/stored_at_most, /*schema*/batch_bytes, /*schema*/fitting'),
                     ('relay_take', 'execute on function /*schema*/as_text, /*schema*/as_long_text, /*schema*/as_pretty_text, '
                                    '/*schema*/stored_bytes, /*schema*/stored_at_most, /*schema*/batch_bytes, /*schema*/fitting'),
                     ('dead_letters', 'execute on function /*schema*/as_text, /*schema*/as_long_text, /*schema*/as_pretty_text, '
                                      '/*schema*/stored_bytes, /*schema*/stored_at_most, /*schema*/batch_bytes, /*schema*/fitting'),
                     ('withdraw', 'execute on function /*schema*/as_text, /*schema*/as_long_text, /*schema*/as_pretty_text, '
                                  '/*schema*/stored_bytes, /*schema*/stored_at_most, /*schema*/batch_bytes, /*schema*/fitting'),
                     ('take', 'execute on function /*schema*/lock_cursor, /*schema*/read, /*schema*/wanted, '
                              '/*schema*/is_withdrawn, /*schema*/divert, /*schema*/obstacle, /*schema*/next_retry, /*schema*/count_deaths'),
                     ('take', 'execute on function /*schema*/in_workspace, /*schema*/receipt_key, /*schema*/ordering_key, /*schema*/concerns'),
                     ('relay_take', 'execute on function /*schema*/in_workspace, /*schema*/receipt_key, /*schema*/ordering_key, /*schema*/concerns'),
                     ('dead_letters', 'execute on function /*schema*/in_workspace, /*schema*/receipt_key, /*schema*/ordering_key, /*schema*/concerns'),
                     ('withdraw', 'execute on function /*schema*/in_workspace, /*schema*/receipt_key, /*schema*/ordering_key, /*schema*/concerns'),
                     ('publish', 'execute on function /*schema*/as_text, /*schema*/as_long_text'),
                     ('enqueue', 'execute on function /*schema*/as_text, /*schema*/as_long_text'),
                     ('dead_letters', 'execute on function /*schema*/sees_all, /*schema*/sees_every_tenant, /*schema*/wanted, /*schema*/is_withdrawn'),
                     ('take', 'execute on function /*schema*/generation_channel, /*schema*/is_live, /*schema*/claimable, /*schema*/claim_at, /*schema*/owed_of'),
                     ('relay_take', 'execute on function /*schema*/generation_channel, /*schema*/is_live, /*schema*/claimable, /*schema*/claim_at, /*schema*/owed_of'),
                     ('dead_letters', 'execute on function /*schema*/generation_channel, /*schema*/is_live, /*schema*/claimable, /*schema*/claim_at, /*schema*/owed_of'),
                     ('withdraw', 'execute on function /*schema*/generation_channel, /*schema*/is_live, /*schema*/claimable, /*schema*/claim_at, /*schema*/owed_of'),
                     ('publish', 'execute on function /*schema*/generation_channel, /*schema*/is_live, /*schema*/claimable, /*schema*/claim_at, /*schema*/owed_of'),
                     ('enqueue_one', 'execute on function /*schema*/generation_channel, /*schema*/is_live, /*schema*/claimable, /*schema*/claim_at, /*schema*/owed_of')) as needs (function, objects)
        join pg_proc as p on p.proname = needs.function
        cross join aclexplode(p.proacl) as a
        where p.pronamespace = (select c.relnamespace from pg_class as c where c.oid = '/*schema*/cursor'::regclass)
          and a.privilege_type = 'EXECUTE' and a.grantee not in (0, p.proowner)
          -- A role that may update columns gets no privilege on the whole table, with which it could lock it.
          and (needs.objects !~ '\mupdate\M(?! \()'
               or not has_any_column_privilege(a.grantee, substring(needs.objects from ' on (.*)'), 'update'))
    loop
        execute format('grant %s to %s', granted.objects, granted.role);
    end loop;
    -- Every role that inserts evaluates the constraints and notifies, also one that `outrider roles` did not create.
    for granted in
        select distinct case a.grantee when 0 then 'public' else a.grantee::regrole::text end as role
        from (select c.oid, c.relowner, c.relacl as acl from pg_class as c
              union all
              select c.oid, c.relowner, m.attacl from pg_attribute as m join pg_class as c on c.oid = m.attrelid) as table_or_column
        cross join aclexplode(table_or_column.acl) as a
        where table_or_column.oid in ('/*schema*/outbox'::regclass, '/*schema*/delivery'::regclass, '/*schema*/job'::regclass)
          and a.privilege_type in ('INSERT', 'UPDATE') and a.grantee <> table_or_column.relowner
    loop
        execute format('grant execute on function /*schema*/bounded, /*schema*/notify to %s', granted.role);
    end loop;
end
$inherit$;
