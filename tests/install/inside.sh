#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# usage: inside.sh RELEASE
#
# Tries `make install` and `make dkms` for the kernel RELEASE, whose headers and source
# are installed. It changes the system that it runs in: vramio-vm test-install runs it in
# one that is thrown away.

set -eu

release=$1
series=$(echo "$release" | sed -n 's/^\([0-9]*\.[0-9]*\).*/\1/p')
source=/usr/src/linux-source-$series.tar.xz
modules=/lib/modules/$release
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
log=$(mktemp)

say() {
	printf 'install: %s\n' "$*"
}

fail() {
	tail -n 40 "$log"
	say "FAILED: $*"
	exit 1
}

# Runs a command that has to succeed.
must() {
	"$@" >"$log" 2>&1 || fail "$* ended with $?"
}

# Runs a command that has to fail and to say $1, in its output or in DKMS's log.
must_refuse() {
	reason=$1
	shift
	if "$@" >"$log" 2>&1; then
		fail "$* succeeded, expected: $reason"
	fi
	cat "/var/lib/dkms/vramio/$version/build/make.log" >>"$log" 2>/dev/null || :
	grep -qF "$reason" "$log" || fail "$* did not say: $reason"
	say "refused: $(grep -F "$reason" "$log" | head -n 1)"
}

# The module in the file $1 is vramio for this kernel, and depmod has found it.
check_module() {
	[ -f "$1" ] || fail "there is no $1"
	stock=$(modinfo -F vermagic "$(find "$modules/kernel" -name 'nvme.ko*')")
	ours=$(modinfo -F vermagic "$1")
	[ "$ours" = "$stock" ] || fail "vermagic is '$ours', the kernel's own is '$stock'"
	found=$(modprobe --set-version "$release" --show-depends vramio | tail -n 1)
	[ "$found" = "insmod $1 " ] || [ "$found" = "insmod $1" ] || fail "modprobe would '$found', not $1"
	say "modprobe finds $1, vermagic $ours"
}

check_rules() {
	must udevadm verify --no-summary "$1/usr/lib/udev/rules.d/60-vramio.rules"
}

install() {
	make install RELEASE="$release" KDIR="$modules/build" "$@"
}

dkms_build() {
	dkms build -m vramio -v "$version" -k "$release"
}

# The kernel's compiler, replaced by one of another version.
with_other_rustc() {
	mv /usr/bin/rustc /usr/bin/rustc.kernel
	printf '#!/bin/sh\necho "rustc 1.0.0 (a59de37e9 2015-05-13)"\n' >/usr/bin/rustc
	chmod 755 /usr/bin/rustc
	"$@"
	mv /usr/bin/rustc.kernel /usr/bin/rustc
}

# An archive of as much of the kernel's source as says its version: another one.
other_source() {
	dir=$(mktemp -d)
	tar -x -C "$dir" --strip-components=1 -f "$source" --wildcards \
		'*/Makefile' '*/scripts/*' '*/arch/x86/Makefile*'
	sed -i 's/^SUBLEVEL = .*/SUBLEVEL = 99/' "$dir/Makefile"
	tar -c -C "$(dirname "$dir")" -f /tmp/other.tar "$(basename "$dir")"
	rm -rf "$dir"
}

case $(readlink -f "$modules/build") in
/usr/src/*) ;;
*) fail "$modules/build is not that of installed headers" ;;
esac

# What does not fit stops the build, with the reason.
with_other_rustc must_refuse "rustc is 'rustc 1.0.0" install
mv "$source" "$source.away"
must_refuse "no source of kernel $release" install
mv "$source.away" "$source"
other_source
export VRAMIO_KERNEL_SOURCE=/tmp/other.tar
must_refuse "is version $series.99, but the kernel is $release" install
unset VRAMIO_KERNEL_SOURCE
[ ! -e "$modules/updates/vramio.ko" ] || fail "a refused install left a module"
[ -z "$(ls /var/cache/vramio)" ] || fail "a refused install left a tree"

say "make install, which makes the kernel's Rust metadata first"
must install
check_module "$modules/updates/vramio.ko"
check_rules ''
cp "$modules/updates/vramio.ko" /vramio.ko

# As a packager does.
must install DESTDIR=/package
[ -f "/package$modules/updates/vramio.ko" ] || fail "there is no module in DESTDIR"
[ -f "/package$modules/modules.dep" ] || fail "depmod did not run in DESTDIR"
check_rules /package
outside=$(cd /package && find . -type f ! -path './lib/modules/*' ! -path ./usr/lib/udev/rules.d/60-vramio.rules)
[ -z "$outside" ] || fail "make install also made $outside"
say 'make install DESTDIR=/package puts all of it there'

rm -f "$modules/updates/vramio.ko" /usr/lib/udev/rules.d/60-vramio.rules
must make dkms
check_rules ''
must dkms add -m vramio -v "$version"
with_other_rustc must_refuse "rustc is 'rustc 1.0.0" dkms_build
export VRAMIO_KERNEL_SOURCE=/tmp/other.tar
must_refuse "is version $series.99, but the kernel is $release" dkms_build
unset VRAMIO_KERNEL_SOURCE
[ -e "/var/cache/vramio/$release/.vramio" ] || fail "a refused build cost the kernel's tree"
must dkms_build
must dkms install -m vramio -v "$version" -k "$release"
dkms status | grep -q "^vramio/$version, $release, x86_64: installed" || fail "dkms status: $(dkms status)"
check_module "$(find "$modules/updates/dkms" -name 'vramio.ko*')"
must dkms remove -m vramio -v "$version" --all
[ -z "$(find "$modules/updates" -name 'vramio.ko*')" ] || fail 'dkms remove left the module'
say PASS
