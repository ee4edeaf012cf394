/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Memory that the test looks at from outside: it lies together in the GPU's memory, and a
 * client says where.
 */
#ifndef PLACE_H
#define PLACE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda.h>

#ifdef __cplusplus
extern "C"
#endif
	CUresult
	mock_cuda_place(CUdeviceptr address, uint64_t *place, uint64_t *len);

/* Nothing may touch so many bytes before and behind what a client reads. */
#define MARGIN (1 << 20)

/* The device's context, and memory for `len` bytes between two margins: where these begin. */
static inline CUdeviceptr placed(size_t len)
{
	CUcontext context;
	CUdeviceptr memory;
	uint64_t place, together;
	size_t all = len + 2 * MARGIN;
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuMemAlloc_v2(&memory, all) || mock_cuda_place(memory, &place, &together) ||
	    together < all) {
		fprintf(stderr, "no device memory of %zu bytes that lies together\n", all);
		exit(1);
	}
	printf("place=%llu\n", (unsigned long long)place);
	return memory + MARGIN;
}

#endif
