-- content_classes: the content class of the events at these positions. An event that is gone has none. By position.
select o.seq, o.content_class from /*schema*/outbox as o where o.seq = any (%(seqs)s::bigint[])
