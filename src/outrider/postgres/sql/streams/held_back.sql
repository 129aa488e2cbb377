-- held_back: a row if an operator has paused this subscription, or all.
select 1 from /*schema*/subscription as s
where s.name = %(subscription)s
  and (s.paused_at is not null
       or exists (select from /*schema*/setting as p where p.name = 'paused' and p.value <> 0))
