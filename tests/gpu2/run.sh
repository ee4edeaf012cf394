#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Runs what collect.sh has put into a directory on this machine's two CUDA GPUs: the tests,
# the benchmark, and the loading of a model, one after the other. Ends with an error if there
# are fewer than two GPUs, or if something failed.
#
# usage: run.sh DIRECTORY [test] [bench] [load]
#
# All three without a name. SIZE: the benchmark's file, MiB (8192); MODEL: the model, MiB
# (4096); ROUNDS: how often each thing is measured (3); OUT: where the results go as JSON;
# SWEEP=1: threads and staging buffers of other sizes, too; VRAMIO_TEST_DIR: where the files
# are made (/tmp). MOCK=DIRECTORY: not on GPUs, but on the mock of CUDA's driver (libcuda.so)
# there.
set -u

dir=$1
shift
: "${SIZE:=8192}" "${MODEL:=4096}" "${ROUNDS:=3}" "${OUT:=$dir/results}" "${MOCK:=}"
[ $# -gt 0 ] || set -- test bench load
mkdir -p "$OUT"
files=$(mktemp -d "${VRAMIO_TEST_DIR:-/tmp}/vramio-gpu2.XXXXXX") || exit
trap 'rm -rf "$files"' EXIT
if [ -n "$MOCK" ]; then
	export LD_LIBRARY_PATH="$MOCK"
	echo 'the mock of the driver: the numbers say nothing'
else
	nvidia-smi --query-gpu=index,name,driver_version,pcie.link.gen.current,pcie.link.width.current \
		--format=csv,noheader
	nvidia-smi topo -m 2>/dev/null | sed '/^$/,$d'
fi
"$dir/vramio-bench-gpu2" --check || exit
echo "Linux $(uname -r), $(nproc) cores, $(stat --file-system --format %T "$files"), $(date -u +%F)"

failed=
# A part may not take longer than this, seconds: all of them end within 8 minutes.
limit=155
for part in "$@"; do
	printf '\n=== %s\n' "$part"
	begin=$(date +%s)
	case $part in
	test)
		# What needs the mock has a name that says so.
		if [ -n "$MOCK" ]; then
			# They look for the mock beside them.
			cp "$dir/test-gpus" "$MOCK/libcuda.so" "$files"
			VRAMIO_TEST_DIR=$files timeout $limit "$files/test-gpus"
		else
			VRAMIO_TEST_GPU=1 VRAMIO_TEST_DIR=$files timeout $limit "$dir/test-gpus" --skip mock_
		fi
		;;
	bench)
		timeout $limit "$dir/vramio-bench-gpu2" --file "$files/bench" --size "$SIZE" \
			--rounds "$ROUNDS" --json "$OUT/bench.json" ${SWEEP:+--sweep}
		;;
	load)
		timeout $limit python3 "$dir/load.py" --vramio "$dir/vramio" --file "$files/model" \
			--size "$MODEL" --rounds "$ROUNDS" --json "$OUT/load.json"
		;;
	*) (exit 64) ;;
	esac
	status=$?
	echo "$part: status $status, $(($(date +%s) - begin)) s"
	[ $status -eq 0 ] || failed=1
	rm -f "$files/bench" "$files/model"
done
test -z "$failed"
