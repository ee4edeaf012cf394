/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints: /sys/kernel/tracing/events/vramio. Reasons, paths and certainties
 * are the numbers of include/uapi/linux/vramio.h. No event has an address.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM vramio

#if !defined(_VRAMIO_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _VRAMIO_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(vramio_register,
	TP_PROTO(u64 bytes, u32 runs, u32 domain, u32 devid),
	TP_ARGS(bytes, runs, domain, devid),
	TP_STRUCT__entry(
		__field(u64, bytes)
		__field(u32, runs)
		__field(u32, domain)
		__field(u32, devid)
	),
	TP_fast_assign(
		__entry->bytes = bytes;
		__entry->runs = runs;
		__entry->domain = domain;
		__entry->devid = devid;
	),
	TP_printk("provider=%04x:%02x:%02x.%u bytes=%llu runs=%u",
		  __entry->domain, __entry->devid >> 8, __entry->devid >> 3 & 0x1f,
		  __entry->devid & 7, __entry->bytes, __entry->runs)
);

TRACE_EVENT(vramio_revoke,
	TP_PROTO(u64 bytes, u32 reason),
	TP_ARGS(bytes, reason),
	TP_STRUCT__entry(
		__field(u64, bytes)
		__field(u32, reason)
	),
	TP_fast_assign(
		__entry->bytes = bytes;
		__entry->reason = reason;
	),
	TP_printk("bytes=%llu reason=%u", __entry->bytes, __entry->reason)
);

TRACE_EVENT(vramio_submit,
	TP_PROTO(bool write, u64 file_offset, u64 buffer_offset, u64 len, u32 path),
	TP_ARGS(write, file_offset, buffer_offset, len, path),
	TP_STRUCT__entry(
		__field(u64, file_offset)
		__field(u64, buffer_offset)
		__field(u64, len)
		__field(u32, path)
		__field(bool, write)
	),
	TP_fast_assign(
		__entry->file_offset = file_offset;
		__entry->buffer_offset = buffer_offset;
		__entry->len = len;
		__entry->path = path;
		__entry->write = write;
	),
	TP_printk("%s file_offset=%llu buffer_offset=%llu len=%llu path=%u",
		  __entry->write ? "write" : "read", __entry->file_offset,
		  __entry->buffer_offset, __entry->len, __entry->path)
);

TRACE_EVENT(vramio_complete,
	TP_PROTO(bool write, u64 bytes, u64 ns, u32 certainty, u32 reason),
	TP_ARGS(write, bytes, ns, certainty, reason),
	TP_STRUCT__entry(
		__field(u64, bytes)
		__field(u64, ns)
		__field(u32, certainty)
		__field(u32, reason)
		__field(bool, write)
	),
	TP_fast_assign(
		__entry->bytes = bytes;
		__entry->ns = ns;
		__entry->certainty = certainty;
		__entry->reason = reason;
		__entry->write = write;
	),
	TP_printk("%s bytes=%llu ns=%llu certainty=%u reason=%u",
		  __entry->write ? "write" : "read", __entry->bytes, __entry->ns,
		  __entry->certainty, __entry->reason)
);

TRACE_EVENT(vramio_refuse,
	TP_PROTO(u32 reason, u32 error),
	TP_ARGS(reason, error),
	TP_STRUCT__entry(
		__field(u32, reason)
		__field(u32, error)
	),
	TP_fast_assign(
		__entry->reason = reason;
		__entry->error = error;
	),
	TP_printk("reason=%u error=%u", __entry->reason, __entry->error)
);

#endif /* _VRAMIO_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
