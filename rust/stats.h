/* SPDX-License-Identifier: GPL-2.0 */
/* What rust/stats.rs and helpers.c both know of the counters of a request's end. */

/* Counters of one ending: powers of two, nanoseconds. */
#define VRAMIO_CONST_LATENCIES 32
/* The last ending: refused. Those before it are certainties. */
#define VRAMIO_CONST_REFUSED 4
