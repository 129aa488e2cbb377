-- inbox_open: how far an inbox has read its stream. The first call stores where it begins.
with opened as (
    insert into /*schema*/stream as s (subscription, name, position)
    values (%(subscription)s, %(stream)s, %(position)s)
    on conflict (subscription, name) do nothing
    returning s.position
)
select opened.position from opened
union all
select s.position from /*schema*/stream as s where s.subscription = %(subscription)s and s.name = %(stream)s
limit 1
