-- settle: settle and commit a batch in one round trip: two statements at once, so without parameters. See functions/settle.sql.
select /*schema*/settle({batch});
commit
