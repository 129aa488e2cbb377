-- relay_wrote: whether a relay can have written a stream that it does not know: one of these events, which are in it, was published
-- in this log, and no other relay of this database writes to a stream of that name.
select not exists (select from /*schema*/stream as s join /*schema*/subscription as sub on sub.name = s.subscription
                   where s.name = %(stream)s and s.subscription <> %(subscription)s and sub.kind = 'relay')
       and exists (select from /*schema*/outbox as o where o.id = any (%(ids)s::uuid[]) and o.origin is null)
