#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Makes sure that the harness can be compiled and run, and prints the PATH to do
# it with. As root it installs what is missing; as an ordinary user it prints the
# one line that does.
#
# usage: qemu/bootstrap.sh [check]      (check: also what `make check` needs)

set -eu

NEEDS_CARGO=1.95
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "error: $*"
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Is the version $1 at least $2? Only major and minor count.
at_least() {
    major=${1%%.*}
    rest=${1#*.}
    minor=${rest%%.*}
    [ "$major" -gt "${2%%.*}" ] || { [ "$major" -eq "${2%%.*}" ] && [ "$minor" -ge "${2#*.}" ]; }
}

# Prints the PATH with the directory of a cargo that is new enough at its front,
# so that cargo finds its own rustc.
path_with_cargo() {
    for cargo in "$(command -v cargo || :)" "${CARGO_HOME:-${HOME:-/}/.cargo}/bin/cargo" /usr/bin/cargo; do
        [ -x "$cargo" ] || continue
        version=$("$cargo" --version 2>/dev/null) || continue
        version=${version#cargo }
        case $version in
            [0-9]*.[0-9]*) at_least "${version%% *}" "$NEEDS_CARGO" || continue ;;
            *) continue ;;
        esac
        case $cargo in
            "$(command -v cargo || :)") printf '%s\n' "$PATH" ;;
            *) printf '%s:%s\n' "${cargo%/*}" "$PATH" ;;
        esac
        return 0
    done
    return 1
}

# The version that apt would install of the package $1; empty if it has none.
candidate() {
    LC_ALL=C apt-cache policy "$1" | sed -n 's/^  Candidate: \([^(].*\)/\1/p'
}

missing() {
    has gcc || echo gcc
    [ -e /usr/include/stdio.h ] || echo libc6-dev
    has mmdebstrap || echo mmdebstrap
    has tar || echo tar
    # It fetches the public header that tests of libcufile compile against.
    python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
    [ -e "$KEYRING" ] || echo debian-archive-keyring
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    [ "$(id -u)" = 0 ] || has newuidmap || echo uidmap
    [ -n "$path" ] || echo cargo-web rustc-web
    if [ "$purpose" = check ]; then
        has shellcheck || echo shellcheck
        # With Debian's cargo; rustup has its own.
        [ -n "$path" ] || echo rustfmt-web
    fi
}

install_all() {
    has apt-get || die "these are missing: $*; this host has no apt-get to install them with"
    if [ "$(id -u)" != 0 ]; then
        say "error: these packages are missing; install them, then run it again:"
        say "    sudo apt-get update && sudo apt-get install --yes --no-install-recommends $*"
        exit 1
    fi
    for package in "$@"; do
        if [ -z "$(candidate "$package")" ]; then
            # A fresh machine has no package lists.
            say "apt-get update"
            apt-get -q update >&2 || die "apt-get update failed; check the network and apt's sources"
            break
        fi
    done
    case " $* " in
        *" cargo-web "*)
            version=$(candidate cargo-web)
            at_least "${version:-0.0}" "$NEEDS_CARGO" || die \
                "no cargo >= $NEEDS_CARGO here, and Debian's cargo-web is ${version:-not known to apt};" \
                "install Rust with rustup, or add Debian's security archive to apt's sources"
            ;;
    esac
    say "apt-get install $*"
    DEBIAN_FRONTEND=noninteractive apt-get -q install --yes --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "$@" >&2 || die "apt-get install failed: $*"
}

purpose=${1:-run}
path=$(path_with_cargo) || path=
packages=$(missing | tr '\n' ' ')
if [ -n "$packages" ]; then
    # shellcheck disable=SC2086 # package names, one word each
    install_all $packages
    path=$(path_with_cargo) || die "there is still no cargo >= $NEEDS_CARGO"
fi
if [ "$purpose" = check ]; then
    for part in fmt clippy; do
        PATH=$path cargo "$part" --version >/dev/null 2>&1 || die \
            "cargo $part is missing; Debian's cargo-web has no clippy, so make check needs Rust from" \
            "rustup (rustup component add rustfmt clippy)"
    done
fi
if [ ! -e "${CARGO_TARGET_DIR:-target}/debug/vramio-vm" ]; then
    say "compiling the harness, which takes a minute the first time ..."
fi
printf '%s\n' "$path"
