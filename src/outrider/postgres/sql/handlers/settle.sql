-- settle and commit a batch: one round trip, without parameters (two statements at once). See handlers/functions/settle.sql.
select /*schema*/settle({batch});
commit
