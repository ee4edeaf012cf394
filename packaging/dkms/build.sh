#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# usage: build.sh RELEASE HEADERS
#
# Builds vramio.ko in this directory's grandparent for the kernel RELEASE, whose
# headers lie in HEADERS.
#
# A Rust module is built against the metadata of the kernel's own Rust code. Where
# the headers lack it, it is made here from the kernel's source, once for each
# kernel. It fits only if compiler, source and configuration are those of the
# kernel; each is checked, and the first that is not stops the build with a reason.
#
# The source is taken from VRAMIO_KERNEL_SOURCE (a directory or an archive), else
# from /usr/src/linux-source-SERIES.tar.xz. VRAMIO_CACHE is where prepared trees are
# kept (/var/cache/vramio), about 2 GiB each.

set -eu

release=$1
headers=$2
top=$(cd "$(dirname "$0")/../.." && pwd)
cache=${VRAMIO_CACHE:-/var/cache/vramio}
jobs=$(nproc)

fail() {
	printf 'vramio: %s\n' "$*" >&2
	exit 1
}

# A value of a configuration file, without quotes.
value() {
	sed -n "s/^$2=//p" "$1" | tr -d '"'
}

[ -f "$headers/.config" ] ||
	fail "no kernel configuration in $headers: install linux-headers-$release"
[ "$(value "$headers/.config" CONFIG_PCI_P2PDMA)" = y ] ||
	fail "kernel $release has no CONFIG_PCI_P2PDMA: vramio needs it"
[ "$(value "$headers/.config" CONFIG_RUST)" = y ] ||
	fail "kernel $release has no CONFIG_RUST: vramio needs it"

# The metadata's format, and the names of all symbols, are the compiler's.
wanted=$(value "$headers/.config" CONFIG_RUSTC_VERSION_TEXT)
have=$(rustc --version 2>/dev/null) ||
	fail "no rustc: kernel $release was built with '$wanted'; install that version"
[ "$have" = "$wanted" ] ||
	fail "rustc is '$have', but kernel $release was built with '$wanted': install that version"
command -v "${BINDGEN:-bindgen}" >/dev/null || fail "no bindgen: install it"

# The kernel's C compiler.
cc=$(value "$headers/.config" CONFIG_CC_VERSION_TEXT | cut -d' ' -f1)
command -v "$cc" >/dev/null || fail "no $cc: kernel $release was built with it; install it"

kmake() {
	make CC="$cc" -j"$jobs" -C "$@"
}

build() {
	kmake "$1" M="$top" VRAMIO_ONLY=1 modules
}

if [ -f "$headers/rust/libkernel.rmeta" ]; then
	build "$headers"
	exit
fi

series=$(echo "$release" | sed -n 's/^\([0-9]*\.[0-9]*\).*/\1/p')
source=${VRAMIO_KERNEL_SOURCE:-/usr/src/linux-source-$series.tar.xz}
[ -e "$source" ] ||
	fail "no source of kernel $release at $source: install linux-source-$series in the kernel's version, or set VRAMIO_KERNEL_SOURCE"

tree=$cache/$release
# Trees of kernels that are gone.
for old in "$cache"/*/; do
	name=$(basename "$old")
	[ "$name" = "$release" ] || [ -d "/lib/modules/$name" ] || rm -rf "$old"
done

# Made of the same source, configuration and compiler before?
stamp=$({ stat -Lc '%n %s %Y' "$source"; cat "$headers/.config" "$headers/Module.symvers"; echo "$have"; } |
	sha256sum)
if [ "$(cat "$tree/.vramio" 2>/dev/null)" = "$stamp" ]; then
	build "$tree"
	exit
fi

# Nothing half made stays, and a source that does not fit costs no tree that does.
new=$tree.new
rm -rf "$new"
mkdir -p "$new"
trap 'rm -rf "$new"' EXIT
if [ -d "$source" ]; then
	cp -a "$source/." "$new"
	kmake "$new" -s mrproper
else
	tar -x -C "$new" --no-same-owner --strip-components=1 -f "$source"
fi

version=$(kmake "$new" -s kernelversion)
case $release in
"$version"*) ;;
*) fail "the source at $source is version $version, but the kernel is $release: install the source of the same version" ;;
esac

cp "$headers/.config" "$new/.config"
(
	cd "$new"
	scripts/config --set-str LOCALVERSION "${release#"$version"}" --disable LOCALVERSION_AUTO \
		--set-str MODULE_SIG_KEY '' --set-str SYSTEM_TRUSTED_KEYS ''
)
kmake "$new" -s olddefconfig

# Options that name the tools' versions or abilities to sign, and those set above, do
# not change a layout.
options() {
	grep '^CONFIG_' "$1" | sort |
		grep -Ev '^CONFIG_(LOCALVERSION|LOCALVERSION_AUTO|MODULE_SIG_KEY|SYSTEM_TRUSTED_KEYS|CC_VERSION_TEXT|GCC_VERSION|AS_VERSION|LD_VERSION|PAHOLE_VERSION|BINDGEN_VERSION_TEXT|OPENSSL_SUPPORTS_[A-Z0-9_]*)='
}
options "$headers/.config" >"$new/.wanted"
options "$new/.config" >"$new/.have"
different=$(comm -3 "$new/.wanted" "$new/.have" | tr -d '\t' | cut -d= -f1 | sort -u | tr '\n' ' ')
[ -z "$different" ] ||
	fail "the configuration of kernel $release cannot be had here, probably for want of a tool (bindgen, pahole, the kernel's C compiler): $different"

kmake "$new" modules_prepare
cp "$headers/Module.symvers" "$new/"
made=$(kmake "$new" -s kernelrelease)
[ "$made" = "$release" ] || fail "the tree made is for $made, not for $release"

# Every Rust symbol made here must be in the kernel, or the module would not load.
missing=$(sed -n 's/^EXPORT_SYMBOL_RUST_GPL(\(.*\));.*/\1/p' "$new"/rust/exports_*_generated.h | sort -u |
	{
		cut -f2 "$headers/Module.symvers" | sort -u >"$new/.exported"
		comm -23 - "$new/.exported"
	} | wc -l)
[ "$missing" -eq 0 ] ||
	fail "$missing Rust symbols made from $source are not in kernel $release: the source is not the kernel's"

printf '%s\n' "$stamp" >"$new/.vramio"
rm -rf "$tree"
mv "$new" "$tree"
trap - EXIT
build "$tree"
