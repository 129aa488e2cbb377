-- unregistered: which of these names are no subscriptions.
select wanted.name from unnest(%(names)s::text[]) as wanted (name)
where not exists (select from /*schema*/subscription as s where s.name = wanted.name)
