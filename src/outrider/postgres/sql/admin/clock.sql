-- clock: the database's time, from which every duration counts.
select clock_timestamp()
