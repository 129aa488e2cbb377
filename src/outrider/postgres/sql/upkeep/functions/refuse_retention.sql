-- refuse_retention: the trigger of setting. Receipts stay longer than all that can be replayed: whoever replays an event whose
-- receipt is gone handles it twice. It runs at the end of the transaction, so that several settings can be changed together.
create or replace function /*schema*/refuse_retention() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    log      bigint := (select s.value from /*schema*/setting as s where s.name = 'retention.log_days');
    grace    bigint := (select s.value from /*schema*/setting as s where s.name = 'retention.log_grace_days');
    letters  bigint := (select s.value from /*schema*/setting as s where s.name = 'retention.dead_letter_days');
    receipts bigint := (select s.value from /*schema*/setting as s where s.name = 'retention.receipt_days');
begin
    if (log + grace < receipts) is not true then
        raise 'receipts must outlive the log: retention.log_days + retention.log_grace_days = %, retention.receipt_days = %',
            coalesce((log + grace)::text, 'unset'), coalesce(receipts::text, 'unset')
            using errcode = 'OR009', hint = 'Raise retention.receipt_days first, or in the same transaction.';
    end if;
    if (letters < receipts) is not true then
        raise 'receipts must outlive dead letters: retention.dead_letter_days = %, retention.receipt_days = %',
            coalesce(letters::text, 'unset'), coalesce(receipts::text, 'unset')
            using errcode = 'OR009', hint = 'Raise retention.receipt_days first, or in the same transaction.';
    end if;
    return null;
end
$$;
