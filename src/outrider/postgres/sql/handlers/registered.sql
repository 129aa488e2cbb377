-- registered: what the table says of one subscription. By primary key.
select kind, context, event_types, partitions, ordering from /*schema*/subscription where name = %(name)s
