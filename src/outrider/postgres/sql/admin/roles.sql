-- roles: create the group roles and grant each what it needs, and no more. Run it again after every upgrade.
-- It revokes first and grants in the same transaction, so nobody notices. Needs the owner of the schema, and CREATEROLE if a role
-- is missing.
/*hold*/;
do $roles$
declare
    owner constant oid := (select n.nspowner from pg_namespace as n where n.nspname = '/*namespace*/');
    name  text;
begin
    if not pg_has_role(owner, 'usage') then
        raise insufficient_privilege
            using message = format('the schema belongs to %s, and you are %s', owner::regrole, quote_ident(current_user));
    end if;
    foreach name in array '{/*all roles*/}'::text[] loop
        if to_regrole(quote_ident(name)) is null then
            execute format('create role %I nologin', name);
        elsif exists (select from pg_roles as r where r.rolname = name
                        and (r.rolcanlogin or r.rolsuper or pg_has_role(r.oid, owner, 'member'))) then
            raise 'the role % is not a mere group: it can log in, or is a superuser or the owner', name
                using errcode = 'OR010', hint = 'Choose another prefix.';
        end if;
    end loop;
end
$roles$;

revoke all on schema /*namespace*/ from /*all roles*/;
revoke all on all tables in schema /*namespace*/ from /*all roles*/;
revoke all on all sequences in schema /*namespace*/ from /*all roles*/;
revoke all on all functions in schema /*namespace*/ from /*all roles*/;
grant usage on schema /*namespace*/ to /*all roles*/;

-- The producer publishes and enqueues. It never sets tx, seq or a lease, and reads of the log only what an insert returns.
grant select on /*schema*/migration, /*schema*/setting to /*prefix*/producer;
grant insert (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
              aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context, caused_by)
      on /*schema*/outbox to /*prefix*/producer;
grant select (id, seq, occurred_at) on /*schema*/outbox to /*prefix*/producer;
grant insert (subscription, generation, event_id, event_version, source, workspace_id, trace_context, run_at, queue, priority,
              job_key, unique_key, payload, caused_by)
      on /*schema*/job to /*prefix*/producer;
grant execute on function
    /*schema*/publish, /*schema*/enqueue, /*schema*/enqueue_one, /*schema*/enqueue_onto, /*schema*/replace_closed, /*schema*/uuid7,
    /*schema*/notify, /*schema*/as_text, /*schema*/as_long_text,
    /*schema*/error_fingerprint, /*schema*/bounded  -- used by triggers and by generated columns
    to /*prefix*/producer;

-- The worker runs handlers, jobs, schedules, rollups, relays and inboxes, which publish and enqueue themselves.
grant select on /*schema*/migration, /*schema*/setting, /*schema*/subscription, /*schema*/outbox, /*schema*/outbox_seq,
                /*schema*/owed, /*schema*/unfinished, /*schema*/withdrawal, /*schema*/rollup, /*schema*/rollup_pending,
                /*schema*/rollup_log, /*schema*/stream_mark, /*schema*/stream_ahead, /*schema*/stream_replayed to /*prefix*/worker;
grant insert (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
              aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context, origin, caused_by)
      on /*schema*/outbox to /*prefix*/worker;
grant select, insert on /*schema*/event_handled to /*prefix*/worker;
grant select on /*schema*/cursor to /*prefix*/worker;
grant select, insert on /*schema*/schedule, /*schema*/stream to /*prefix*/worker;
grant select, insert, update, delete on /*schema*/delivery, /*schema*/job, /*schema*/stream_refused to /*prefix*/worker;
grant usage on sequence /*schema*/lease_token, /*schema*/job_id_seq to /*prefix*/worker;
grant execute on function
    /*schema*/publish, /*schema*/enqueue, /*schema*/enqueue_one, /*schema*/enqueue_onto, /*schema*/replace_closed, /*schema*/uuid7,
    /*schema*/take, /*schema*/lock_cursor, /*schema*/read, /*schema*/wanted, /*schema*/is_withdrawn, /*schema*/divert,
    /*schema*/obstacle, /*schema*/next_retry, /*schema*/count_deaths, /*schema*/count_take, /*schema*/take_parked, /*schema*/late_transactions, /*schema*/log_home, /*schema*/foreign_floor, /*schema*/park,
    /*schema*/promote, /*schema*/bury, /*schema*/failure, /*schema*/error_fingerprint, /*schema*/settle,
    /*schema*/open_generation, /*schema*/fold_generation, /*schema*/pass_over,
    /*schema*/sees_all, /*schema*/sees_every_tenant, /*schema*/claim, /*schema*/claim_lane, /*schema*/lanes, /*schema*/in_lane, /*schema*/in_turn,
    /*schema*/admit_scheduled, /*schema*/pick, /*schema*/pick_suspect, /*schema*/take_turns, /*schema*/tenants_due, /*schema*/lease,
    /*schema*/pick_limited, /*schema*/has_workers, /*schema*/room,
    /*schema*/hold_limits, /*schema*/reap, /*schema*/release, /*schema*/rewrite, /*schema*/admit, /*schema*/close_kept,
    /*schema*/notify, /*schema*/wake_jobs, /*schema*/settle_jobs, /*schema*/settle_done,
    /*schema*/renew, /*schema*/route, /*schema*/make_jobs, /*schema*/fire,
    /*schema*/relay_take, /*schema*/relay_hold, /*schema*/relay_open, /*schema*/relay_settle, /*schema*/relay_reject,
    /*schema*/relay_rewind, /*schema*/relay_ahead, /*schema*/ingest, /*schema*/rollup_settings,
    /*schema*/unread, /*schema*/bounded
    to /*prefix*/worker;

-- The relay role runs only relays: it reads the log, and moves the cursors of relays through functions.
grant select on /*schema*/migration, /*schema*/setting, /*schema*/subscription, /*schema*/outbox, /*schema*/outbox_seq,
                /*schema*/withdrawal, /*schema*/cursor, /*schema*/delivery, /*schema*/stream, /*schema*/stream_mark,
                /*schema*/stream_ahead, /*schema*/stream_replayed to /*prefix*/relay;
grant execute on function
    /*schema*/relay_take, /*schema*/relay_hold, /*schema*/relay_open, /*schema*/relay_settle, /*schema*/relay_reject,
    /*schema*/relay_rewind, /*schema*/relay_ahead, /*schema*/late_transactions, /*schema*/log_home, /*schema*/unread,
    /*schema*/notify
    to /*prefix*/relay;

-- Worker and relay have a heartbeat.
grant select, insert on /*schema*/worker to /*prefix*/worker, /*prefix*/relay;
grant execute on function /*schema*/sample_due to /*prefix*/worker, /*prefix*/relay;
grant execute on function /*schema*/keep_sample to /*prefix*/worker;
grant execute on function /*schema*/forget_workers to /*prefix*/worker, /*prefix*/relay;

-- Column by column: a role that may update or delete the whole table may also lock it, and all readers would wait.
do $columns$
declare
    relation regclass;
    columns  text;
begin
    foreach relation in array array['/*schema*/cursor', '/*schema*/schedule', '/*schema*/stream', '/*schema*/worker']::regclass[] loop
        select string_agg(quote_ident(a.attname), ', ') into columns
        from pg_attribute as a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped;
        execute format('grant update (%s) on %s to /*prefix*/worker', columns, relation);
        if relation = '/*schema*/worker'::regclass then
            execute format('grant update (%s) on %s to /*prefix*/relay', columns, relation);
        end if;
    end loop;
end
$columns$;

-- The dashboard reads everything, payloads included; the operator also acts, through functions that keep an audit. Neither reads
-- segments, attached or detached, directly: they are read through the log.
do $reading$
declare
    relation regclass;
begin
    for relation in
        select c.oid from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
        where n.nspname = '/*namespace*/' and c.relkind in ('r', 'p', 'v') and not c.relispartition
          and c.relname !~ '^outbox_'
    loop
        execute format('grant select on %s to /*prefix*/dashboard, /*prefix*/operator', relation);
    end loop;
end
$reading$;
grant select on /*schema*/outbox_seq to /*prefix*/dashboard, /*prefix*/operator;
grant execute on function
    /*schema*/sees_all, /*schema*/sees_every_tenant, /*schema*/late_transactions, /*schema*/log_home, /*schema*/unread, /*schema*/wanted, /*schema*/is_withdrawn, /*schema*/dead_letters, /*schema*/jobs_page, /*schema*/waiting_events, /*schema*/waiting_behind, /*schema*/error_fingerprint, /*schema*/rollup_settings,
    /*schema*/rollup_verify, /*schema*/rollup_preflight, /*schema*/rollup_check_sql, /*schema*/rollup_check_key, /*schema*/rollup_parts, /*schema*/rollup_commands,
    /*schema*/rollup_others
    to /*prefix*/dashboard, /*prefix*/operator;
grant execute on function
    /*schema*/pause, /*schema*/pause_all, /*schema*/resume, /*schema*/resume_all, /*schema*/narrow, /*schema*/rename,
    /*schema*/retire, /*schema*/replay, /*schema*/outbox_replay, /*schema*/discard, /*schema*/withdraw, /*schema*/cancel,
    /*schema*/run_now, /*schema*/pause_schedule, /*schema*/resume_schedule, /*schema*/run_schedule, /*schema*/change_jobs, /*schema*/move_generation, /*schema*/set_setting, /*schema*/allow_content_class, /*schema*/rollup_run, /*schema*/rollup_work_noted, /*schema*/rollup_retry,
    /*schema*/note_adoption, /*schema*/attach_segment, /*schema*/tenant_page, /*schema*/note_export, /*schema*/erase,
    /*schema*/canary_begin, /*schema*/canary_send, /*schema*/canary_end
    to /*prefix*/operator;

-- For every role that reads payloads, counts events, and looks for receipts and for events that wait behind others.
grant execute on function
    /*schema*/as_text, /*schema*/as_long_text, /*schema*/as_pretty_text, /*schema*/stored_bytes, /*schema*/stored_at_most, /*schema*/batch_bytes, /*schema*/fitting,
    /*schema*/in_workspace, /*schema*/receipt_key, /*schema*/ordering_key, /*schema*/concerns
    to /*prefix*/worker, /*prefix*/relay, /*prefix*/dashboard, /*prefix*/operator;

-- Expressions that functions and statements use.
grant execute on function /*schema*/generation_channel, /*schema*/is_live, /*schema*/claimable, /*schema*/claim_at, /*schema*/owed_of
    to /*prefix*/producer, /*prefix*/worker, /*prefix*/relay, /*prefix*/dashboard, /*prefix*/operator;

-- The cron role ticks rollups, for a scheduler.
grant execute on function /*schema*/rollup_tick, /*schema*/rollup_work to /*prefix*/cron;

-- The upkeep role, like the worker, runs upkeep.
grant select on /*schema*/migration, /*schema*/setting, /*schema*/segment, /*schema*/upkeep to /*prefix*/upkeep;
grant select on /*schema*/segment, /*schema*/upkeep to /*prefix*/worker;
grant execute on function
    /*schema*/upkeep_begin, /*schema*/upkeep_segments, /*schema*/upkeep_log, /*schema*/upkeep_receipts,
    /*schema*/upkeep_dead_letters, /*schema*/upkeep_traces, /*schema*/upkeep_reap, /*schema*/overdue_rollups,
    /*schema*/rollup_tick, /*schema*/rollup_work
    to /*prefix*/upkeep, /*prefix*/worker;

-- The doctor must see the transactions of other roles.
do $monitor$
begin
    if not pg_has_role('/*dashboard*/', 'pg_monitor', 'member') or not pg_has_role('/*operator*/', 'pg_monitor', 'member') then
        grant pg_monitor to /*prefix*/dashboard, /*prefix*/operator;
    end if;
exception when insufficient_privilege then
    raise notice 'the doctor will not see who holds transactions open: let a superuser run: grant pg_monitor to %, %',
        '/*dashboard*/', '/*operator*/';
end
$monitor$;
