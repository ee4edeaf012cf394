/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What the cases have in common: checks, files, device memory.
 */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cufile.h"

#define CHECK(condition)                                                                 \
	do {                                                                             \
		if (!(condition)) {                                                      \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__,       \
				#condition);                                             \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

#define IS(value, wanted)                                                                \
	do {                                                                             \
		long long value_ = (long long)(value), wanted_ = (long long)(wanted);    \
		if (value_ != wanted_) {                                                 \
			fprintf(stderr, "%s:%d: %s is %lld, and should be %lld\n",       \
				__FILE__, __LINE__, #value, value_, wanted_);            \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

/* A call that returns a CUfileError_t, and its code. */
#define CODE(call, wanted) IS((call).err, wanted)
#define OK(call) CODE(call, CU_FILE_SUCCESS)
#define CUDA(call) IS(call, 0)

#define POISON 0xa5
#define KIB 1024ull
#define MIB (KIB * KIB)

/* Bytes that tell where they belong. */
static inline unsigned char at(uint64_t offset, unsigned seed)
{
	uint64_t mixed = ((offset / 8) ^ seed) * 0x9e3779b97f4a7c15ull;
	return (unsigned char)(mixed >> (offset % 8 * 8)) | 1;
}

/* A new file with so many of them. */
static inline int make(const char *name, size_t len, unsigned seed, int flags)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0);
	unsigned char *data = malloc(len ? len : 1);
	for (size_t i = 0; i < len; i++)
		data[i] = at(i, seed);
	for (size_t done = 0; done < len;) {
		ssize_t wrote = write(fd, data + done, len - done);
		CHECK(wrote > 0);
		done += (size_t)wrote;
	}
	free(data);
	IS(fsync(fd), 0);
	close(fd);
	fd = open(name, O_RDWR | flags);
	CHECK(fd >= 0);
	return fd;
}

static inline void current(void)
{
	CUcontext context;
	CUDA(cuInit(0));
	CUDA(cuDevicePrimaryCtxRetain(&context, 0));
	CUDA(cuCtxSetCurrent(context));
}

/* Poisoned device memory. */
static inline void *vram(size_t len)
{
	CUdeviceptr address;
	unsigned char *poison = malloc(len);
	memset(poison, POISON, len);
	CUDA(cuMemAlloc_v2(&address, len));
	CUDA(cuMemcpyHtoD_v2(address, poison, len));
	free(poison);
	return (void *)(uintptr_t)address;
}

static inline void fill(void *address, size_t len, unsigned seed)
{
	unsigned char *data = malloc(len);
	for (size_t i = 0; i < len; i++)
		data[i] = at(i, seed);
	CUDA(cuMemcpyHtoD_v2((CUdeviceptr)(uintptr_t)address, data, len));
	free(data);
}

/* Checks that device memory has the file's bytes from `offset` on. */
static inline void holds(void *address, size_t len, uint64_t offset, unsigned seed)
{
	unsigned char *data = malloc(len ? len : 1);
	CUDA(cuMemcpyDtoH_v2(data, (CUdeviceptr)(uintptr_t)address, len));
	for (size_t i = 0; i < len; i++)
		if (data[i] != at(offset + i, seed)) {
			fprintf(stderr, "byte %zu is %#x, and should be %#x\n", i, data[i],
				at(offset + i, seed));
			exit(1);
		}
	free(data);
}

static inline void untouched(void *address, size_t len)
{
	unsigned char *data = malloc(len ? len : 1);
	CUDA(cuMemcpyDtoH_v2(data, (CUdeviceptr)(uintptr_t)address, len));
	for (size_t i = 0; i < len; i++)
		IS(data[i], POISON);
	free(data);
}

/* Checks that a file has these bytes from `offset` on. */
static inline void file_holds(int fd, size_t len, uint64_t offset, unsigned seed)
{
	unsigned char *data = malloc(len ? len : 1);
	IS(pread(fd, data, len, (off_t)offset), len);
	for (size_t i = 0; i < len; i++)
		IS(data[i], at(offset + i, seed));
	free(data);
}

static inline CUfileHandle_t handle_of(int fd)
{
	CUfileHandle_t handle = NULL;
	CUfileDescr_t descr = { .type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd };
	OK(cuFileHandleRegister(&handle, &descr));
	CHECK(handle != NULL);
	return handle;
}

static inline CUfileOpError try_handle(int fd)
{
	CUfileHandle_t handle = NULL;
	CUfileDescr_t descr = { .type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd };
	return cuFileHandleRegister(&handle, &descr).err;
}

static inline double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* A case: its name and its function. */
struct test {
	const char *name;
	void (*run)(void);
};

#define TEST(name) { #name, name }

static inline int run_one(const struct test *tests, size_t count, int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (size_t i = 0; i < count; i++)
			puts(tests[i].name);
		return 0;
	}
	for (size_t i = 0; argc == 2 && i < count; i++)
		if (strcmp(argv[1], tests[i].name) == 0) {
			tests[i].run();
			IS(mock_cuda_faults(), 0);
			return 0;
		}
	fprintf(stderr, "usage: %s CASE\n", argv[0]);
	return 2;
}

#define MAIN(tests)                                                                      \
	int main(int argc, char **argv)                                                  \
	{                                                                                \
		return run_one(tests, sizeof(tests) / sizeof(*tests), argc, argv);       \
	}

#endif
