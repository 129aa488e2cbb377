-- drawn: the last position that the log's sequence has handed out, also to open transactions; and whether notifications are off
-- because their queue is nearly full (notify). Needs SELECT on the sequence. Reads one page; takes no lock that anyone waits for.
select last_value, is_called, pg_notification_queue_usage() >= 0.9 from /*schema*/outbox_seq
