-- registered: one subscription as the table has it. By primary key.
select kind, context, event_types, partitions, ordering from /*schema*/subscription where name = %(name)s
