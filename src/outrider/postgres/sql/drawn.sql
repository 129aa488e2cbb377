-- drawn: what the log's sequence has given out, also to transactions that are still open. One page, no lock that anyone
-- waits for; needs SELECT on the sequence.
select last_value, is_called from /*schema*/outbox_seq
