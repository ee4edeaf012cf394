#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The guest's first process: mounts, the NVMe driver, then the agent. When the
# agent ends the machine goes off, and the harness sees that.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t debugfs debugfs /sys/kernel/debug
modprobe nvme || echo "init: cannot load nvme"
cmdline=$(cat /proc/cmdline)
case " $cmdline " in
*" vramio.panic "*) echo c >/proc/sysrq-trigger ;;
esac
case " $cmdline " in
*" vramio.shell "*)
	vramio-guest &
	cd /root || exit
	setsid -c sh -l </dev/ttyS1 >/dev/ttyS1 2>&1
	;;
*)
	vramio-guest
	;;
esac
echo "init: going off"
poweroff -f
