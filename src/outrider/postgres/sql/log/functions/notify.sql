-- notify: the one place that sends a wake-up. It only saves the workers a moment, since they poll, so it never fails the work:
-- it does nothing where outrider.notify is off for the session, and while the server's queue of notifications is nearly full. A
-- full queue would fail the COMMIT, where nothing can catch it. To ask how full the queue is also gives its read part back, which
-- Postgres does at no other time once it is full.
-- A channel of a class, outbox_gen_<N>_<class>, has a second one for relays, which send the events of every class.
-- An expression that Postgres inlines. No type is longer than 255; a raw insert may be, and Postgres refuses 8,000 bytes.
create or replace function /*schema*/notify(p_channel text, p_kind text) returns void
    language sql volatile
    return case when current_setting('outrider.notify', true) is distinct from 'off' and pg_notification_queue_usage() < 0.9
                then case when case when p_channel like 'outbox\_gen\_%\_%'
                                    then pg_notify('outbox_classes', left(p_kind, 255)) is null end
                          then null else pg_notify(p_channel, left(p_kind, 255)) end end;
