-- opened: whether a generation has cursors of its own at a subscription. By primary key.
select exists (select from /*schema*/cursor as c
               where c.subscription = %(subscription)s and c.generation = %(generation)s)
