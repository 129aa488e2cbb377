-- hold_cursors: nobody takes from a subscription until the transaction ends. Waits for batches in progress. After hold,
-- so that no partition is added meanwhile.
select c.partition from /*schema*/cursor as c where c.subscription = %(name)s
order by c.generation, c.partition for update
