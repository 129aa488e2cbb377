#!/bin/sh
# Sees to it that Debian's Postgres 15 is there, for make verify, and its pg_cron. The tests start a
# server of their own: the cluster that Debian would make and start with a first installation is not made, and what is
# there already stays as it is.
set -eu

server=/usr/lib/postgresql/15/bin/postgres
cron=/usr/share/postgresql/15/extension/pg_cron.control
asides=/etc/postgresql-common/createcluster.d
aside=$asides/outrider-ci.conf

give_up() {
    echo "Postgres 15 is not at $server, or its pg_cron not at $cron, and $1." >&2
    echo "Install both as root (apt-get install postgresql-15 postgresql-15-cron; where the distribution has none, with packages" >&2
    echo "of the PostgreSQL project), then run this again." >&2
    exit 1
}

if [ -x "$server" ] && [ -e "$cron" ]; then
    exit 0
fi
echo "==> installing Debian's Postgres 15 and its pg_cron"
[ "$(id -u)" = 0 ] || give_up "only root can install them"
command -v apt-get >/dev/null || give_up "there is no apt-get to install them with"

mkdir -p "$asides"
trap 'rm -f "$aside"' EXIT
echo "create_main_cluster = false" >"$aside"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || give_up "apt-get update failed"
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends postgresql-15 postgresql-15-cron || give_up "apt-get could not install them"
[ -x "$server" ] || give_up "the package postgresql-15 did not bring it"
[ -e "$cron" ] || give_up "the package postgresql-15-cron did not bring it"
