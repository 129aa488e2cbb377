-- receipt: insert receipts for events of the caller's own open transaction, with the keys that take uses. For tests.
-- Returns the seqs of the events that had none.
insert into /*schema*/event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
select %(handler)s, winner.key, winner.id, winner.seq, winner.generation, winner.content_class
from (select /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id) collate "C" as key,
             o.id, o.seq, o.generation, o.content_class
      from /*schema*/outbox as o
      where o.seq = any (%(seqs)s)) as winner
order by winner.key, winner.seq
on conflict do nothing
returning seq
