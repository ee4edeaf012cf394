/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Opening, handles, memory, reads and writes.
 */
#include "check.h"

#define SEED 7

static void the_library_opens_by_itself_and_counts(void)
{
	IS(cuFileUseCount(), 0);
	CODE(cuFileDriverClose(), CU_FILE_DRIVER_NOT_INITIALIZED);
	OK(cuFileDriverOpen());
	OK(cuFileDriverOpen());
	IS(cuFileUseCount(), 2);
	OK(cuFileDriverClose());
	OK(cuFileDriverClose());
	IS(cuFileUseCount(), 0);
	CODE(cuFileDriverClose(), CU_FILE_DRIVER_NOT_INITIALIZED);
	/* By a file, by memory, and again after a closing. */
	int fd = make("file", 4096, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	IS(cuFileUseCount(), 1);
	OK(cuFileDriverClose());
	IS(cuFileUseCount(), 0);
	char data[16];
	IS(cuFileRead(handle, data, 16, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
	handle = handle_of(fd);
	IS(cuFileRead(handle, data, 16, 0, 0), 16);
	OK(cuFileDriverClose());
	cuFileHandleDeregister(handle);
	cuFileHandleDeregister(NULL);
	cuFileHandleDeregister((void *)-1);
	CODE(cuFileBufDeregister(data), CU_FILE_DRIVER_NOT_INITIALIZED);
	OK(cuFileBufRegister(data, sizeof(data), 0));
	IS(cuFileUseCount(), 1);
}

static void a_descriptor_is_registered_once(void)
{
	int fd = make("file", 4096, SEED, 0);
	CUfileHandle_t first = handle_of(fd);
	IS(try_handle(fd), CU_FILE_HANDLE_ALREADY_REGISTERED);
	int second = open("file", O_RDWR | O_DIRECT);
	if (second < 0)
		second = open("file", O_RDWR);
	CUfileHandle_t other = handle_of(second);
	CHECK(other != first);
	cuFileHandleDeregister(first);
	CUfileHandle_t again = handle_of(fd);
	CHECK(again != first);
	char data[16];
	IS(cuFileRead(first, data, 16, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
	IS(cuFileRead(again, data, 16, 0, 0), 16);
	/* Closed and used again for another file, it is another one. */
	close(fd);
	int new = make("other", 100, SEED + 1, 0);
	if (new != fd)
		IS(dup2(new, fd), fd);
	CUfileHandle_t reused = handle_of(fd);
	unsigned char byte[100];
	IS(cuFileRead(reused, byte, 100, 0, 0), 100);
	IS(byte[50], at(50, SEED + 1));
	/* The old handle still means the old file. */
	IS(cuFileRead(again, byte, 100, 0, 0), 100);
	IS(byte[50], at(50, SEED));
}

static void descriptors_must_be_of_the_right_kind(void)
{
	CUfileHandle_t handle;
	CUfileDescr_t descr = { .type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = -1 };
	CODE(cuFileHandleRegister(&handle, &descr), CU_FILE_INVALID_VALUE);
	descr.handle.fd = 1 << 20;
	CODE(cuFileHandleRegister(&handle, &descr), CU_FILE_INVALID_VALUE);
	CODE(cuFileHandleRegister(NULL, &descr), CU_FILE_INVALID_VALUE);
	CODE(cuFileHandleRegister(&handle, NULL), CU_FILE_INVALID_VALUE);
	descr.type = 77;
	CODE(cuFileHandleRegister(&handle, &descr), CU_FILE_INVALID_VALUE);
	descr.type = CU_FILE_HANDLE_TYPE_USERSPACE_FS;
	CODE(cuFileHandleRegister(&handle, &descr), CU_FILE_IO_NOT_SUPPORTED);

	int ends[2];
	IS(pipe(ends), 0);
	IS(try_handle(ends[0]), CU_FILE_INVALID_FILE_TYPE);
	IS(try_handle(open("/dev/null", O_RDWR)), CU_FILE_INVALID_FILE_TYPE);
	IS(try_handle(open(".", O_RDONLY)), CU_FILE_INVALID_FILE_TYPE);

	close(make("file", 4096, SEED, 0));
	static const int flags[] = { O_APPEND, O_NONBLOCK, O_NOFOLLOW, O_NOATIME };
	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		int fd = open("file", O_RDWR | flags[i]);
		CHECK(fd >= 0);
		IS(try_handle(fd), CU_FILE_INVALID_FILE_OPEN_FLAG);
	}
	IS(try_handle(open(".", O_RDONLY | O_DIRECTORY)), CU_FILE_INVALID_FILE_OPEN_FLAG);
	int nameless = open(".", O_RDWR | O_TMPFILE, 0600);
	if (nameless >= 0)
		IS(try_handle(nameless), CU_FILE_INVALID_FILE_OPEN_FLAG);
	/* By a symbolic link it is the file. */
	IS(symlink("file", "link"), 0);
	IS(try_handle(open("link", O_RDONLY)), CU_FILE_SUCCESS);
}

static void memory_is_registered_once(void)
{
	current();
	char *memory = vram(1 << 20);
	OK(cuFileBufRegister(memory, 1 << 20, 0));
	CODE(cuFileBufRegister(memory, 1 << 20, 0), CU_FILE_MEMORY_ALREADY_REGISTERED);
	CODE(cuFileBufRegister(memory, 4096, 0), CU_FILE_MEMORY_ALREADY_REGISTERED);
	OK(cuFileBufRegister(memory + 4096, 4096, CU_FILE_RDMA_REGISTER));
	OK(cuFileBufDeregister(memory + 4096));
	OK(cuFileBufDeregister(memory));
	CODE(cuFileBufDeregister(memory), CU_FILE_MEMORY_NOT_REGISTERED);
	CODE(cuFileBufDeregister(NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileBufRegister(NULL, 4096, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileBufRegister(memory, 0, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileBufRegister(memory, 4096, 64), CU_FILE_INVALID_VALUE);
	CODE(cuFileBufRegister(memory, (1 << 20) + 1, 0), CU_FILE_CUDA_POINTER_RANGE_ERROR);
	CODE(cuFileBufRegister(memory, SIZE_MAX, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileBufRegister((void *)4096, 4096, 0), CU_FILE_CUDA_POINTER_INVALID);

	CUdeviceptr managed;
	CUDA(cuMemAllocManaged(&managed, 1 << 16, 1));
	CODE(cuFileBufRegister((void *)(uintptr_t)managed, 1 << 16, 0),
	     CU_FILE_CUDA_MEMORY_TYPE_INVALID);

	/* Freed without a word, and allocated anew at the same address. */
	OK(cuFileBufRegister(memory, 1 << 20, 0));
	CUDA(cuMemFree_v2((CUdeviceptr)(uintptr_t)memory));
	IS((uintptr_t)vram(1 << 20), (uintptr_t)memory);
	OK(cuFileBufRegister(memory, 1 << 20, 0));

	void *host = malloc(4096);
	OK(cuFileBufRegister(host, 4096, 0));
	CODE(cuFileBufRegister(host, 4096, 0), CU_FILE_MEMORY_ALREADY_REGISTERED);
	OK(cuFileBufDeregister(host));
	free(host);
}

static void no_more_memory_is_registered_than_allowed(void)
{
	current();
	OK(cuFileDriverSetMaxPinnedMemSize(1024));
	CODE(cuFileDriverSetMaxPinnedMemSize(1ull << 40), CU_FILE_DRIVER_UNSUPPORTED_LIMIT);
	CODE(cuFileDriverSetMaxPinnedMemSize(0), CU_FILE_INVALID_VALUE);
	char *memory = vram(2 * MIB);
	CODE(cuFileBufRegister(memory, MIB + 4096, 0), CU_FILE_INVALID_MAPPING_SIZE);
	OK(cuFileBufRegister(memory, MIB, 0));
	CODE(cuFileBufRegister(memory + MIB, 4096, 0), CU_FILE_INVALID_MAPPING_SIZE);
	OK(cuFileBufDeregister(memory));
	OK(cuFileBufRegister(memory + MIB, MIB, 0));
}

/* Reads with each combination of offset, length and pointer, through each kind of
 * descriptor, registered or not. */
static void reads_are_exact(void)
{
	current();
	const size_t len = 3 * MIB + 1000;
	static const int kinds[] = { 0, O_DIRECT };
	for (size_t kind = 0; kind < 2; kind++) {
		int fd = make("file", len, SEED, kinds[kind]);
		CUfileHandle_t handle = handle_of(fd);
		for (int registered = 0; registered < 2; registered++) {
			char *memory = vram(4 * MIB);
			if (registered)
				OK(cuFileBufRegister(memory, 4 * MIB, 0));
			static const struct {
				size_t size;
				off_t from, to;
			} reads[] = {
				{ 4096, 0, 0 },	      { 4096, 4096, 8192 },
				{ 1, 17, 3 },	      { 5000, 100, 77 },
				{ 3 * MIB, 0, 4096 }, { 2 * MIB + 3, 999, 1 },
			};
			for (size_t i = 0; i < sizeof(reads) / sizeof(*reads); i++) {
				size_t size = reads[i].size;
				off_t from = reads[i].from, to = reads[i].to;
				IS(cuFileRead(handle, memory, size, from, to), size);
				holds(memory + to, size, (uint64_t)from, SEED);
				/* The same by an interior pointer. */
				fill(memory, 4 * MIB, 99);
				IS(cuFileRead(handle, memory + to, size, from, 0), size);
				holds(memory + to, size, (uint64_t)from, SEED);
				if (to > 0)
					holds(memory, (size_t)to, 0, 99);
				holds(memory + to + size, 64, (uint64_t)to + size, 99);
			}
			if (registered)
				OK(cuFileBufDeregister(memory));
		}
		cuFileHandleDeregister(handle);
		close(fd);
	}
}

static void the_end_of_a_file_is_the_end(void)
{
	current();
	int fd = make("file", 10000, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	char *memory = vram(MIB);
	IS(cuFileRead(handle, memory, MIB, 0, 0), 10000);
	holds(memory, 10000, 0, SEED);
	IS(cuFileRead(handle, memory, 4096, 9990, 0), 10);
	IS(cuFileRead(handle, memory, 4096, 10000, 0), 0);
	IS(cuFileRead(handle, memory, 4096, 1ll << 40, 0), 0);
	IS(cuFileRead(handle, memory, 0, 0, 0), 0);
	IS(cuFileWrite(handle, memory, 0, 0, 0), 0);
	struct stat stat;
	IS(fstat(fd, &stat), 0);
	IS(stat.st_size, 10000);
}

static void writes_are_exact(void)
{
	current();
	static const int kinds[] = { 0, O_DIRECT };
	for (size_t kind = 0; kind < 2; kind++) {
		int fd = make("file", MIB, SEED, kinds[kind]);
		int check = open("file", O_RDONLY);
		CUfileHandle_t handle = handle_of(fd);
		char *memory = vram(2 * MIB);
		fill(memory, 2 * MIB, SEED + 1);
		IS(cuFileWrite(handle, memory, 4096, 8192, 8192), 4096);
		file_holds(check, 8192, 0, SEED);
		file_holds(check, 4096, 8192, SEED + 1);
		file_holds(check, 4096, 12288, SEED);
		/* Not aligned, and beyond the end. */
		OK(cuFileBufRegister(memory, 2 * MIB, 0));
		IS(cuFileWrite(handle, memory, MIB + 5, MIB - 100, MIB - 100), MIB + 5);
		file_holds(check, MIB - 12288 - 4096 - 100, 16384, SEED);
		file_holds(check, MIB + 5, MIB - 100, SEED + 1);
		struct stat stat;
		IS(fstat(check, &stat), 0);
		IS(stat.st_size, 2 * MIB - 95);
		cuFileHandleDeregister(handle);
		OK(cuFileBufDeregister(memory));
		close(check);
		close(fd);
	}
}

static void bad_requests_have_their_codes(void)
{
	current();
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	char *memory = vram(MIB);
	IS(cuFileRead(NULL, memory, 10, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
	IS(cuFileRead((void *)&fd, memory, 10, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
	IS(cuFileRead(handle, NULL, 10, 0, 0), -CU_FILE_INVALID_VALUE);
	IS(cuFileRead(handle, memory, 10, -1, 0), -CU_FILE_INVALID_VALUE);
	IS(cuFileRead(handle, memory, 10, 0, -1), -CU_FILE_INVALID_VALUE);
	IS(cuFileRead(handle, memory, SIZE_MAX, 0, 0), -CU_FILE_INVALID_VALUE);
	IS(cuFileRead(handle, memory, MIB + 1, 0, 0), -CU_FILE_CUDA_POINTER_RANGE_ERROR);
	IS(cuFileRead(handle, memory, 2, 0, MIB - 1), -CU_FILE_CUDA_POINTER_RANGE_ERROR);
	IS(cuFileRead(handle, (void *)4096, 10, 0, 0), -CU_FILE_CUDA_POINTER_INVALID);
	OK(cuFileBufRegister(memory, 8192, 0));
	IS(cuFileRead(handle, memory, 8193, 0, 0), -CU_FILE_INVALID_MAPPING_RANGE);
	IS(cuFileRead(handle, memory, 4096, 0, 8192), -CU_FILE_INVALID_MAPPING_RANGE);
	/* What the kernel says is -1 and errno. */
	close(fd);
	fd = open("file", O_RDONLY);
	handle = handle_of(fd);
	errno = 0;
	IS(cuFileWrite(handle, memory, 4096, 0, 0), -1);
	IS(errno, EBADF);
	int other = open("file", O_WRONLY);
	handle = handle_of(other);
	errno = 0;
	IS(cuFileRead(handle, memory, 4096, 0, 0), -1);
	IS(errno, EBADF);
	IS(cuFileWrite(handle, memory, 4096, 0, 0), 4096);
	/* A driver that fails is no success. */
	mock_cuda_fail("cuMemcpyDtoHAsync_v2", 0, 719);
	IS(cuFileWrite(handle, memory, 4096, 0, 0), -CU_FILE_CUDA_DRIVER_ERROR);
	untouched(memory, 8192);
}

static void memory_that_was_freed_is_refused(void)
{
	current();
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	char *memory = vram(MIB);
	OK(cuFileBufRegister(memory, MIB, 0));
	IS(cuFileRead(handle, memory, MIB, 0, 0), MIB);
	CUDA(cuMemFree_v2((CUdeviceptr)(uintptr_t)memory));
	IS(cuFileRead(handle, memory, MIB, 0, 0), -CU_FILE_CUDA_POINTER_INVALID);
	/* Allocated anew it is what the caller says it is. */
	IS((uintptr_t)vram(MIB), (uintptr_t)memory);
	IS(cuFileRead(handle, memory, 4096, 4096, 0), 4096);
	holds(memory, 4096, 4096, SEED);
	untouched(memory + 4096, MIB - 4096);
}

static void host_and_managed_memory_are_memory(void)
{
	current();
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	unsigned char *host = malloc(MIB);
	memset(host, POISON, MIB);
	IS(cuFileRead(handle, host, 1000, 10, 100), 1000);
	for (size_t i = 0; i < MIB; i++)
		IS(host[i], i >= 100 && i < 1100 ? at(i - 90, SEED) : POISON);
	void *pinned;
	CUDA(cuMemHostAlloc(&pinned, 8192, 0));
	IS(cuFileRead(handle, pinned, 8192, 4096, 0), 8192);
	IS(((unsigned char *)pinned)[8191], at(4096 + 8191, SEED));
	CUDA(cuMemFreeHost(pinned));
	void *mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	IS(cuFileRead(handle, mapped, 8192, 4096, 0), 8192);
	IS(cuFileWrite(handle, mapped, 8192, 4096, 0), 8192);
	/* Memory that may not be written to. */
	IS(mprotect(mapped, 8192, PROT_READ), 0);
	IS(cuFileRead(handle, mapped, 8192, 0, 0), -CU_FILE_CUDA_POINTER_INVALID);
	IS(cuFileWrite(handle, mapped, 8192, 4096, 0), 8192);
	IS(munmap(mapped, 4096), 0);
	IS(cuFileWrite(handle, mapped, 8192, 0, 0), -CU_FILE_CUDA_POINTER_INVALID);
	file_holds(fd, MIB, 0, SEED);
	CUdeviceptr managed;
	CUDA(cuMemAllocManaged(&managed, 8192, 1));
	IS(cuFileRead(handle, (void *)(uintptr_t)managed, 8192, 4096, 0), 8192);
	holds((void *)(uintptr_t)managed, 8192, 4096, SEED);
	free(host);
}

static void requests_may_be_larger_than_four_gigabytes(void)
{
	/* Holes on both sides: nothing needs room on the disk. */
	int fd = make("file", 0, SEED, 0);
	const size_t len = 4096 * MIB + 5 * MIB;
	IS(ftruncate(fd, (off_t)(len + MIB)), 0);
	IS(pwrite(fd, "middle", 6, (off_t)(4096 * MIB) + 3), 6);
	IS(pwrite(fd, "end", 3, (off_t)len - 3), 3);
	CUfileHandle_t handle = handle_of(fd);
	char *host = mmap(NULL, len, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(host != MAP_FAILED);
	IS(cuFileRead(handle, host, len, 0, 0), len);
	CHECK(memcmp(host + 4096 * MIB + 3, "middle", 6) == 0);
	CHECK(memcmp(host + len - 3, "end", 3) == 0);
}

static void vectors_fill_one_piece_after_the_other(void)
{
#ifdef CUFILE_VECTORS
	current();
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	char *memory = vram(MIB);
	unsigned char host[100];
	CUfileIOVec_t pieces[] = {
		{ memory + 5, 1000 }, { NULL, 0 }, { host, 100 }, { memory + 4096, 8192 }
	};
	IS(cuFileReadv(handle, pieces, 4, 50, 0), 9292);
	holds(memory + 5, 1000, 50, SEED);
	IS(host[99], at(50 + 1099, SEED));
	holds(memory + 4096, 8192, 1150, SEED);
	IS(cuFileReadv(handle, pieces, 4, (off_t)MIB - 1050, 0), 1050);
	IS(cuFileReadv(handle, pieces, 0, 0, 0), 0);
	IS(cuFileReadv(handle, pieces, 4, 0, 1), -CU_FILE_INVALID_VALUE);
	IS(cuFileReadv(handle, NULL, 4, 0, 0), -CU_FILE_INVALID_VALUE);
	IS(cuFileReadv(handle, pieces, SIZE_MAX, 0, 0), -CU_FILE_INVALID_VALUE);
	IS(cuFileReadv(handle, pieces, 4, -1, 0), -CU_FILE_INVALID_VALUE);
	IS(cuFileReadv(NULL, pieces, 4, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
	fill(memory, MIB, SEED + 1);
	CUfileIOVec_t out[] = { { memory + 100, 50 }, { memory + 150, 4096 } };
	IS(cuFileWritev(handle, out, 2, 100, 0), 4146);
	file_holds(fd, 4146, 100, SEED + 1);
	file_holds(fd, 100, 0, SEED);
#endif
}

static void *read_again_and_again(void *argument)
{
	CUfileHandle_t handle = argument;
	current();
	char *memory = vram(MIB);
	for (int i = 0; i < 200; i++) {
		off_t from = (i * 7919) % (int)MIB;
		size_t len = MIB - (size_t)from;
		IS(cuFileRead(handle, memory, len, from, 0), len);
		holds(memory, len < 256 ? len : 256, (uint64_t)from, SEED);
	}
	return NULL;
}

static void threads_may_share_a_handle(void)
{
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	pthread_t threads[8];
	for (int i = 0; i < 8; i++)
		IS(pthread_create(&threads[i], NULL, read_again_and_again, handle), 0);
	for (int i = 0; i < 8; i++)
		IS(pthread_join(threads[i], NULL), 0);
}

static void *register_again_and_again(void *argument)
{
	int number = (int)(intptr_t)argument;
	char name[16];
	snprintf(name, sizeof(name), "file%d", number);
	int fd = make(name, 4096, (unsigned)number, 0);
	unsigned char data[4096];
	for (int i = 0; i < 500; i++) {
		CUfileHandle_t handle = handle_of(fd);
		OK(cuFileBufRegister(data, 4096, 0));
		IS(cuFileRead(handle, data, 4096, 0, 0), 4096);
		IS(data[i], at((uint64_t)i, (unsigned)number));
		OK(cuFileBufDeregister(data));
		cuFileHandleDeregister(handle);
	}
	return NULL;
}

static void threads_may_register_at_the_same_time(void)
{
	pthread_t threads[8];
	for (intptr_t i = 0; i < 8; i++)
		IS(pthread_create(&threads[i], NULL, register_again_and_again, (void *)i), 0);
	for (int i = 0; i < 8; i++)
		IS(pthread_join(threads[i], NULL), 0);
}

static volatile bool stop;

static void *read_until_stopped(void *argument)
{
	current();
	char *memory = vram(4 * MIB);
	while (!stop) {
		ssize_t got = cuFileRead(argument, memory, 4 * MIB, 0, 0);
		/* Closed meanwhile, the handle is none any more. */
		CHECK(got == 4 * (ssize_t)MIB || got == -CU_FILE_HANDLE_NOT_REGISTERED);
	}
	return NULL;
}

static void a_closing_waits_for_nobody(void)
{
	int fd = make("file", 4 * MIB, SEED, 0);
	OK(cuFileDriverOpen());
	CUfileHandle_t handle = handle_of(fd);
	pthread_t thread;
	mock_cuda_delay(2000);
	IS(pthread_create(&thread, NULL, read_until_stopped, handle), 0);
	int busy = 0, closed = 0;
	double end = now() + 20;
	while ((!busy || !closed) && now() < end) {
		CUfileOpError code = cuFileDriverClose().err;
		if (code == CU_FILE_DRIVER_CLOSING)
			busy++;
		else if (code == CU_FILE_SUCCESS)
			closed++;
		usleep(500);
	}
	stop = true;
	IS(pthread_join(thread, NULL), 0);
	CHECK(busy > 0 && closed > 0);
}

static void a_child_begins_anew(void)
{
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	unsigned char data[4096];
	IS(cuFileRead(handle, data, 4096, 0, 0), 4096);
	for (int round = 0; round < 20; round++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			IS(cuFileUseCount(), 0);
			cuFileHandleDeregister(handle);
			IS(cuFileRead(handle, data, 4096, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
			CUfileHandle_t own = handle_of(fd);
			memset(data, POISON, sizeof(data));
			IS(cuFileRead(own, data, 4096, 4096, 0), 4096);
			IS(data[100], at(4196, SEED));
			if (round % 2)
				OK(cuFileDriverClose());
			exit(0);
		}
		int status;
		IS(waitpid(child, &status, 0), child);
		IS(status, 0);
	}
	IS(cuFileRead(handle, data, 4096, 0, 0), 4096);
	OK(cuFileDriverClose());
}

static void the_callers_context_stays(void)
{
	int fd = make("file", MIB, SEED, 0);
	CUcontext context = (void *)1, other;
	CUDA(cuInit(0));
	CUDA(cuCtxGetCurrent(&context));
	CHECK(context == NULL);
	CUfileHandle_t handle = handle_of(fd);
	CUDA(cuCtxGetCurrent(&context));
	CHECK(context == NULL);
	CUDA(cuDevicePrimaryCtxRetain(&other, 1));
	CUDA(cuCtxSetCurrent(other));
	void *memory = vram(MIB);
	CUDA(cuCtxSetCurrent(NULL));
	IS(cuFileRead(handle, memory, MIB, 0, 0), MIB);
	CUDA(cuCtxGetCurrent(&context));
	CHECK(context == NULL);
	CUDA(cuCtxSetCurrent(other));
	holds(memory, MIB, 0, SEED);
}

static CUcontext context_of(int device)
{
	CUcontext context;
	CUDA(cuDevicePrimaryCtxRetain(&context, device));
	return context;
}

/* The call leaves the thread's context as it is. */
#define STAYS(call)                                                                      \
	do {                                                                             \
		CUcontext before_, after_;                                               \
		CUDA(cuCtxGetCurrent(&before_));                                         \
		call;                                                                    \
		CUDA(cuCtxGetCurrent(&after_));                                          \
		CHECK(before_ == after_);                                                \
	} while (0)

static CUfileHandle_t shared;

/* Memory of one GPU, while each GPU's context is current in turn, or none. */
static void *serve_a_gpu(void *argument)
{
	int device = (int)(intptr_t)argument % 2;
	char name[16];
	snprintf(name, sizeof(name), "out%d", (int)(intptr_t)argument);
	CUcontext own = context_of(device);
	CUcontext turns[] = { NULL, own, context_of(1 - device) };
	for (int turn = 0; turn < 6; turn++) {
		CUDA(cuCtxSetCurrent(own));
		void *memory = vram(200 * KIB);
		int fd = make(name, 1, SEED, 0);
		CUDA(cuCtxSetCurrent(turns[turn % 3]));
		CUfileHandle_t file;
		STAYS(file = handle_of(fd));
		if (turn >= 3)
			STAYS(OK(cuFileBufRegister(memory, 200 * KIB, 0)));
		STAYS(IS(cuFileRead(shared, memory, 4097, 1, 77), 4097));
		STAYS(IS(cuFileRead(shared, memory, 200 * KIB, 0, 0), 200 * KIB));
		STAYS(IS(cuFileWrite(file, memory, 200 * KIB, 0, 0), 200 * KIB));
		file_holds(fd, 200 * KIB, 0, SEED);
		if (turn >= 3)
			STAYS(OK(cuFileBufDeregister(memory)));
		STAYS(cuFileHandleDeregister(file));
		CUDA(cuCtxSetCurrent(own));
		holds(memory, 200 * KIB, 0, SEED);
		CUDA(cuMemFree_v2((CUdeviceptr)(uintptr_t)memory));
		close(fd);
	}
	return NULL;
}

static void memory_of_one_gpu_is_served_while_the_other_is_current(void)
{
	CUDA(cuInit(0));
	shared = handle_of(make("file", 200 * KIB, SEED, 0));
	pthread_t threads[4];
	for (intptr_t i = 0; i < 4; i++)
		IS(pthread_create(&threads[i], NULL, serve_a_gpu, (void *)i), 0);
	for (int i = 0; i < 4; i++)
		IS(pthread_join(threads[i], NULL), 0);
	OK(cuFileDriverClose());
}

static const struct test tests[] = {
	TEST(the_library_opens_by_itself_and_counts),
	TEST(a_descriptor_is_registered_once),
	TEST(descriptors_must_be_of_the_right_kind),
	TEST(memory_is_registered_once),
	TEST(no_more_memory_is_registered_than_allowed),
	TEST(reads_are_exact),
	TEST(the_end_of_a_file_is_the_end),
	TEST(writes_are_exact),
	TEST(bad_requests_have_their_codes),
	TEST(memory_that_was_freed_is_refused),
	TEST(host_and_managed_memory_are_memory),
	TEST(requests_may_be_larger_than_four_gigabytes),
	TEST(vectors_fill_one_piece_after_the_other),
	TEST(threads_may_share_a_handle),
	TEST(threads_may_register_at_the_same_time),
	TEST(a_closing_waits_for_nobody),
	TEST(a_child_begins_anew),
	TEST(the_callers_context_stays),
	TEST(memory_of_one_gpu_is_served_while_the_other_is_current),
};

MAIN(tests)
