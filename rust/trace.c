// SPDX-License-Identifier: GPL-2.0
/* The tracepoints' definitions; helpers.c calls them. */
#define CREATE_TRACE_POINTS
#include "trace.h"
