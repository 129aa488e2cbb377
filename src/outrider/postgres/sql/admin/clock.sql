-- clock: what time it is in the database, which every duration counts from.
select clock_timestamp()
