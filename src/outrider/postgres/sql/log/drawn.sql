-- drawn: what the log's sequence has given out, also to transactions that are still open. One page, no lock that anyone
-- waits for; needs SELECT on the sequence. And whether the queue of notifications is so full that nobody is poked (notify).
select last_value, is_called, pg_notification_queue_usage() >= 0.9 from /*schema*/outbox_seq
