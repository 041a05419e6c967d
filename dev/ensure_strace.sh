#!/bin/sh
# Prints the path of strace, with which tests let system calls of a real broker fail. It is taken from PATH, else
# installed from the system's packages where that is allowed; otherwise this says why not and ends with 1.
set -eu

command -v strace && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    install="apt-get install --yes --quiet --no-install-recommends strace"
    { $install || { apt-get update --quiet && $install; }; } >&2 || true
    command -v strace && exit 0
    echo "strace is not on PATH, and apt-get could not install it" >&2
    exit 1
fi

echo "strace is not on PATH, and only root on a system with apt-get can have it installed" >&2
exit 1
