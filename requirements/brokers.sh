#!/bin/sh
# Sees to it that redis-server, nats-server, pgbouncer, node and chromium are there, for make test and make faults. The tests start servers
# of their own on free ports: those that Debian would start with a first installation are not started.
set -eu

PATH=$PATH:/usr/sbin:/usr/local/sbin
forbid=/usr/sbin/policy-rc.d
missing=
packages=

need() {
    for name in $1; do
        if command -v "$name" >/dev/null 2>&1; then
            return
        fi
    done
    missing="$missing ${1%% *}"
    packages="$packages $2"
}

look() {
    missing=
    packages=
    need redis-server redis-server
    need nats-server nats-server
    need pgbouncer pgbouncer
    need "node nodejs" nodejs
    need "chromium chromium-browser google-chrome" chromium
}

give_up() {
    echo "The tests need$missing, and $1. Install what is missing, then run this again:" >&2
    echo "    Debian, Ubuntu  apt-get install$packages   (as root)" >&2
    echo "    macOS           brew install redis nats-server pgbouncer node chromium" >&2
    echo "    elsewhere       redis-server 7 or newer from redis.io, nats-server 2.9 or newer from nats.io, pgbouncer," >&2
    echo "                    Node 18 or newer from nodejs.org, Chromium, each in a folder of PATH" >&2
    exit 1
}

look
if [ -z "$missing" ]; then
    exit 0
fi
command -v apt-get >/dev/null 2>&1 || give_up "there is no apt-get to install it with"
[ "$(id -u)" = 0 ] || give_up "only root can install it"

echo "==> installing$packages"
if [ ! -e "$forbid" ]; then
    trap 'rm -f "$forbid"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$forbid"
    chmod 755 "$forbid"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || give_up "apt-get update failed"
# shellcheck disable=SC2086
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $packages || give_up "apt-get could not install it"
look
[ -z "$missing" ] || give_up "the packages did not bring it"
