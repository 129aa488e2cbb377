"""A PgBouncer of a test's own, before the test's database."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.brokers import HOST, Broker
from tests.clusters import let_in

from outrider.postgres.embedded.account import server_account


class PgBouncer(Broker):
    program, package, schemes = "pgbouncer", "pgbouncer", ("postgresql", "postgresql")

    def __init__(self, database: str, mode: Literal["transaction", "session"]) -> None:
        super().__init__()
        self._database, self._mode = database, mode

    @property
    def dsn(self) -> str:
        return make_conninfo(self._database, host=HOST, port=self.port)

    def _arguments(self) -> list[str]:
        account = server_account()
        let_in(self._database, account)
        behind = conninfo_to_dict(self._database)
        file = self.folder / "pgbouncer.ini"
        file.write_text(
            f"[databases]\n* = host={behind['host']} port={behind['port']} user={behind['user']}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {self._mode}\nignore_startup_parameters = extra_float_digits\n"
        )
        self.folder.chmod(0o755)
        return [*(["-u", account.name] if account.switched else []), str(file)]

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.dsn) as conn:
            return conn.execute("select 1").fetchone() == (1,)
        return False
