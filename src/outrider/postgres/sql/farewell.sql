-- farewell: a worker that ends in good order takes its row with it.
delete from /*schema*/worker where id = %(id)s
