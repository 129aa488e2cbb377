-- What the guide listed before there was `outrider roles`: roles that were made so must work on.
-- `job` is there because the migration that made it carries over what was granted on `delivery`.
-- app
grant usage on schema outrider to app;
grant select on outrider.outbox, outrider.migration, outrider.subscription, outrider.setting to app;
grant insert (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
              aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context, origin)
      on outrider.outbox to app;
grant select, update on outrider.cursor to app;
grant select, insert on outrider.event_handled to app;
grant select, insert, update, delete on outrider.delivery, outrider.job, outrider.worker, outrider.stream, outrider.stream_mark,
                                        outrider.stream_ahead, outrider.stream_replayed, outrider.stream_refused to app;
grant select, insert, update on outrider.schedule to app;
grant select on outrider.outbox_seq, outrider.withdrawal, outrider.rollup, outrider.rollup_pending,
                outrider.rollup_log to app;
grant usage on sequence outrider.lease_token to app;
grant execute on function outrider.publish, outrider.take, outrider.uuid7, outrider.late_transactions,
                          outrider.foreign_floor, outrider.take_parked, outrider.park, outrider.promote,
                          outrider.bury, outrider.failure, outrider.error_fingerprint, outrider.settle,
                          outrider.open_generation, outrider.fold_generation, outrider.outbox_replay, outrider.replay,
                          outrider.enqueue, outrider.enqueue_one, outrider.claim, outrider.claim_lane,
                          outrider.lease, outrider.pick_limited,
                          outrider.has_workers, outrider.room, outrider.hold_limits, outrider.reap, outrider.release,
                          outrider.rewrite, outrider.admit, outrider.settle_jobs, outrider.renew, outrider.route,
                          outrider.fire, outrider.relay_settle, outrider.relay_mark,
                          outrider.relay_open, outrider.relay_reject, outrider.relay_rewind, outrider.relay_ahead,
                          outrider.ingest, outrider.rollup_tick, outrider.rollup_settings to app;
-- operating
create role viewer;
grant pg_monitor to viewer;  -- the doctor sees the transactions of others
grant usage on schema outrider to viewer;
grant select on all tables in schema outrider to viewer;
grant select on outrider.outbox_seq to viewer;
grant execute on function outrider.late_transactions, outrider.dead_letters, outrider.rollup_settings, outrider.rollup_verify,
                          outrider.rollup_preflight, outrider.rollup_parts, outrider.rollup_commands, outrider.rollup_others
                       to viewer;
create role operator;
grant viewer to operator;
grant update, delete on outrider.subscription to operator;
grant update (value, updated_at) on outrider.setting to operator;
grant update on outrider.cursor to operator;
grant insert, update, delete on outrider.delivery, outrider.job to operator;
grant insert on outrider.withdrawal, outrider.audit to operator;
grant execute on function outrider.outbox_replay, outrider.replay, outrider.promote, outrider.discard, outrider.withdraw,
                          outrider.hold_limits, outrider.admit, outrider.room, outrider.cancel, outrider.run_now,
                          outrider.move_generation, outrider.failure, outrider.error_fingerprint, outrider.rollup_tick,
                          outrider.rollup_retry to operator;
-- enqueuing
grant usage on schema outrider to producer;
grant select, insert on outrider.job to producer;
grant execute on function outrider.error_fingerprint to producer;
grant update on outrider.job to producer; grant execute on function outrider.enqueue_one, outrider.admit to producer;
