-- settle and commit a batch: one round trip, without parameters (two statements at once). See functions/settle.sql.
select /*schema*/settle({batch});
commit
