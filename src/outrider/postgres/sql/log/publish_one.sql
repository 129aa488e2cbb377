-- publish_one: one event, on the caller's connection and in the caller's transaction. Locks nothing.
-- Only the columns that have a value travel. The others get the default of the log, as occurred_at does.
-- The trigger accept_event notifies. With the clause `quietly`, it does not: the statement has put its time into outrider.notified.
insert into /*schema*/outbox (/*columns*/)
select /*values*/
/*quietly*/
returning seq, (extract(epoch from occurred_at) * 1000000)::bigint
