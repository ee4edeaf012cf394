/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Batches.
 */
#include "check.h"

#define SEED 11
#define PIECE 40000

static CUfileIOParams_t entry(CUfileHandle_t handle, CUfileOpcode_t opcode, void *base, size_t size,
			      off_t from, off_t to, intptr_t cookie)
{
	CUfileIOParams_t entry = { .mode = CUFILE_BATCH,
				   .fh = handle,
				   .opcode = opcode,
				   .cookie = (void *)cookie };
	entry.u.batch.devPtr_base = base;
	entry.u.batch.file_offset = from;
	entry.u.batch.devPtr_offset = to;
	entry.u.batch.size = size;
	return entry;
}

/* Fetches all of so many entries, and checks that each comes once. */
static void fetch(CUfileBatchHandle_t batch, unsigned count, CUfileIOEvents_t *events)
{
	CUfileIOEvents_t some[8];
	for (unsigned fetched = 0; fetched < count;) {
		unsigned nr = 8;
		OK(cuFileBatchIOGetStatus(batch, 1, &nr, some, NULL));
		CHECK(nr >= 1 && nr <= 8);
		for (unsigned i = 0; i < nr; i++) {
			intptr_t cookie = (intptr_t)some[i].cookie;
			CHECK(cookie >= 0 && cookie < (intptr_t)count);
			IS(events[cookie].status, 0);
			events[cookie] = some[i];
		}
		fetched += nr;
		CHECK(fetched <= count);
	}
}

static void batches_have_limits(void)
{
	CUfileBatchHandle_t batch;
	CODE(cuFileBatchIOSetUp(&batch, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileBatchIOSetUp(&batch, 129), CU_FILE_INVALID_VALUE);
	CODE(cuFileBatchIOSetUp(NULL, 1), CU_FILE_INVALID_VALUE);
	OK(cuFileBatchIOSetUp(&batch, 2));
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	char data[3][100];
	CUfileIOParams_t entries[3];
	for (int i = 0; i < 3; i++)
		entries[i] = entry(handle, CUFILE_READ, data[i], 100, i * 100, 0, i);
	CODE(cuFileBatchIOSubmit(batch, 3, entries, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileBatchIOSubmit(batch, 0, entries, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileBatchIOSubmit(batch, 1, NULL, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileBatchIOSubmit(batch, 1, entries, 1), CU_FILE_INVALID_VALUE);
	CODE(cuFileBatchIOSubmit((void *)77, 1, entries, 0), CU_FILE_INVALID_VALUE);
	OK(cuFileBatchIOSubmit(batch, 2, entries, 0));
	CODE(cuFileBatchIOSubmit(batch, 1, entries, 0), CU_FILE_BATCH_FULL);
	CUfileIOEvents_t events[2];
	unsigned nr = 2;
	CODE(cuFileBatchIOGetStatus(batch, 3, &nr, events, NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileBatchIOGetStatus(batch, 1, NULL, events, NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileBatchIOGetStatus(batch, 1, &nr, NULL, NULL), CU_FILE_INVALID_VALUE);
	nr = 1;
	OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
	IS(nr, 1);
	/* There is room again for one. */
	OK(cuFileBatchIOSubmit(batch, 1, &entries[2], 0));
	nr = 2;
	OK(cuFileBatchIOGetStatus(batch, 2, &nr, events, NULL));
	IS(nr, 2);
	/* None is open: nothing is waited for. */
	nr = 2;
	OK(cuFileBatchIOGetStatus(batch, 2, &nr, events, NULL));
	IS(nr, 0);
	cuFileBatchIODestroy(batch);
	cuFileBatchIODestroy(batch);
	cuFileBatchIODestroy(NULL);
	CODE(cuFileBatchIOCancel(batch), CU_FILE_INVALID_VALUE);
}

static void many_entries(unsigned count, CUfileBatchHandle_t batch)
{
	current();
	int fd = make("file", (size_t)count * PIECE, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	char *memory = vram((size_t)count * PIECE);
	unsigned char *host = malloc((size_t)count * PIECE);
	CUfileIOParams_t *entries = calloc(count, sizeof(*entries));
	CUfileIOEvents_t *events = calloc(count, sizeof(*events));
	/* Device and host memory, from a base and by an interior pointer. */
	for (unsigned i = 0; i < count; i++) {
		off_t place = (off_t)i * PIECE;
		if (i % 3 == 0)
			entries[i] = entry(handle, CUFILE_READ, host, PIECE, place, place, i);
		else if (i % 3 == 1)
			entries[i] = entry(handle, CUFILE_READ, memory, PIECE, place, place, i);
		else
			entries[i] = entry(handle, CUFILE_READ, memory + place, PIECE, place, 0, i);
	}
	mock_cuda_delay(100);
	OK(cuFileBatchIOSubmit(batch, count, entries, 0));
	fetch(batch, count, events);
	for (unsigned i = 0; i < count; i++) {
		IS(events[i].status, CUFILE_COMPLETE);
		IS(events[i].ret, PIECE);
		if (i % 3 == 0)
			IS(host[(size_t)i * PIECE + 7], at((uint64_t)i * PIECE + 7, SEED));
		else
			holds(memory + (size_t)i * PIECE, PIECE, (uint64_t)i * PIECE, SEED);
	}
	free(entries);
	free(events);
	free(host);
}

static void a_full_batch_completes(void)
{
	CUfileBatchHandle_t batch;
	OK(cuFileBatchIOSetUp(&batch, 128));
	many_entries(128, batch);
	many_entries(128, batch);
	cuFileBatchIODestroy(batch);
}

static void batches_may_be_made_larger(void)
{
	CUfileBatchHandle_t batch;
	OK(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 1000));
	CUfileDrvProps_t props;
	OK(cuFileDriverGetProperties(&props));
	IS(props.max_batch_io_size, 1000);
	OK(cuFileBatchIOSetUp(&batch, 1000));
	many_entries(1000, batch);
	cuFileBatchIODestroy(batch);
}

static void entries_fail_one_by_one(void)
{
	current();
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	CUfileHandle_t reading = handle_of(open("file", O_RDONLY));
	char *memory = vram(MIB);
	fill(memory, MIB, SEED + 1);
	CUfileIOParams_t entries[] = {
		entry(handle, CUFILE_READ, memory, 4096, 0, 0, 0),
		entry((void *)99, CUFILE_READ, memory, 4096, 0, 0, 1),
		entry(handle, 7, memory, 4096, 0, 0, 2),
		entry(handle, CUFILE_READ, (void *)4096, 4096, 0, 0, 3),
		entry(handle, CUFILE_READ, memory, 4096, -5, 0, 4),
		entry(reading, CUFILE_WRITE, memory, 4096, 0, 0, 5),
		entry(handle, CUFILE_WRITE, memory, 4096, 8192, 8192, 6),
		entry(handle, CUFILE_READ, memory, 8192, MIB - 100, 16384, 7),
		entry(handle, CUFILE_READ, memory, 0, 0, 0, 8),
		entry(handle, CUFILE_READ, memory, 4096, 0, MIB - 1, 9),
		entry(handle, CUFILE_READ, memory, 4096, 0, 0, 10),
	};
	entries[10].mode = 3;
	static const struct {
		CUfileStatus_t status;
		ssize_t ret;
	} wanted[] = {
		{ CUFILE_COMPLETE, 4096 },
		{ CUFILE_INVALID, -CU_FILE_HANDLE_NOT_REGISTERED },
		{ CUFILE_INVALID, -CU_FILE_INVALID_VALUE },
		{ CUFILE_INVALID, -CU_FILE_CUDA_POINTER_INVALID },
		{ CUFILE_INVALID, -CU_FILE_INVALID_VALUE },
		{ CUFILE_FAILED, -EBADF },
		{ CUFILE_COMPLETE, 4096 },
		{ CUFILE_COMPLETE, 100 },
		{ CUFILE_COMPLETE, 0 },
		{ CUFILE_INVALID, -CU_FILE_CUDA_POINTER_RANGE_ERROR },
		{ CUFILE_INVALID, -CU_FILE_INVALID_VALUE },
	};
	CUfileBatchHandle_t batch;
	CUfileIOEvents_t events[11] = { 0 };
	OK(cuFileBatchIOSetUp(&batch, 11));
	OK(cuFileBatchIOSubmit(batch, 11, entries, 0));
	fetch(batch, 11, events);
	for (int i = 0; i < 11; i++) {
		IS(events[i].status, wanted[i].status);
		IS((ssize_t)events[i].ret, wanted[i].ret);
	}
	holds(memory, 4096, 0, SEED);
	file_holds(fd, 4096, 8192, SEED + 1);
	file_holds(fd, 4096, 12288, SEED);
	/* The driver fails for one of them. */
	mock_cuda_fail("cuMemcpyHtoDAsync_v2", 1, 719);
	CUfileIOParams_t three[3];
	for (int i = 0; i < 3; i++)
		three[i] = entry(handle, CUFILE_READ, memory, 4096, 0, i * 4096, i);
	memset(events, 0, sizeof(events));
	OK(cuFileBatchIOSubmit(batch, 3, three, 0));
	fetch(batch, 3, events);
	int failed = 0;
	for (int i = 0; i < 3; i++) {
		if (events[i].status == CUFILE_FAILED) {
			IS((ssize_t)events[i].ret, -CU_FILE_CUDA_DRIVER_ERROR);
			failed++;
		} else {
			IS(events[i].status, CUFILE_COMPLETE);
			holds(memory + i * 4096, 4096, 0, SEED);
		}
	}
	IS(failed, 1);
	cuFileBatchIODestroy(batch);
}

static void a_timeout_is_kept(void)
{
	current();
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	char *memory = vram(MIB);
	CUfileBatchHandle_t batch;
	OK(cuFileBatchIOSetUp(&batch, 4));
	CUfileIOEvents_t events[4];
	unsigned nr = 4;
	struct timespec bad = { 0, 1000000000 }, none = { 0, 0 }, some = { 0, 50000000 };
	CODE(cuFileBatchIOGetStatus(batch, 1, &nr, events, &bad), CU_FILE_INVALID_VALUE);
	bad.tv_sec = -1;
	bad.tv_nsec = 0;
	CODE(cuFileBatchIOGetStatus(batch, 1, &nr, events, &bad), CU_FILE_INVALID_VALUE);
	/* Nothing is slower than this. */
	mock_cuda_delay(3000000);
	CUfileIOParams_t one = entry(handle, CUFILE_READ, memory, MIB, 0, 0, 0);
	double begun = now();
	OK(cuFileBatchIOSubmit(batch, 1, &one, 0));
	nr = 4;
	OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, &none));
	CHECK(nr <= 1);
	unsigned early = nr;
	if (early == 0) {
		nr = 4;
		OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, &some));
		CHECK(nr == 1 || now() - begun >= 0.05);
		early = nr;
	}
	mock_cuda_delay(0);
	if (early == 0) {
		nr = 4;
		OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
		IS(nr, 1);
	}
	IS(events[0].ret, MIB);
	cuFileBatchIODestroy(batch);
}

static void what_is_called_off_says_so(void)
{
	current();
	int fd = make("file", 32 * MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	char *memory = vram(32 * MIB);
	CUfileBatchHandle_t batch;
	OK(cuFileBatchIOSetUp(&batch, 128));
	CUfileIOParams_t entries[128];
	CUfileIOEvents_t events[128] = { 0 };
	for (int i = 0; i < 128; i++)
		entries[i] = entry(handle, CUFILE_READ, memory, MIB / 4, i * (off_t)MIB / 4,
				   i * (off_t)MIB / 4, i);
	mock_cuda_delay(20000);
	OK(cuFileBatchIOSubmit(batch, 128, entries, 0));
	OK(cuFileBatchIOCancel(batch));
	fetch(batch, 128, events);
	int cancelled = 0;
	for (int i = 0; i < 128; i++) {
		if (events[i].status == CUFILE_CANCELED) {
			cancelled++;
			continue;
		}
		IS(events[i].status, CUFILE_COMPLETE);
		IS(events[i].ret, MIB / 4);
		holds(memory + i * MIB / 4, MIB / 4, i * MIB / 4, SEED);
	}
	CHECK(cancelled > 0);
	/* It can still be used. */
	memset(events, 0, sizeof(events));
	OK(cuFileBatchIOSubmit(batch, 1, entries, 0));
	fetch(batch, 1, events);
	IS(events[0].status, CUFILE_COMPLETE);
	cuFileBatchIODestroy(batch);
}

static void after_its_end_a_batch_moves_nothing(void)
{
	current();
	int fd = make("file", 16 * MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	for (int round = 0; round < 10; round++) {
		char *memory = vram(16 * MIB);
		CUfileBatchHandle_t batch;
		OK(cuFileBatchIOSetUp(&batch, 64));
		CUfileIOParams_t entries[64];
		for (int i = 0; i < 64; i++)
			entries[i] = entry(handle, CUFILE_READ, memory, MIB / 4,
					   i * (off_t)MIB / 4, i * (off_t)MIB / 4, i);
		mock_cuda_delay(500);
		OK(cuFileBatchIOSubmit(batch, 64, entries, 0));
		if (round % 2)
			CODE(cuFileDriverClose(), CU_FILE_DRIVER_CLOSING);
		cuFileBatchIODestroy(batch);
		/* Whatever is still copied there is a mistake that the mock sees. */
		CUDA(cuMemFree_v2((CUdeviceptr)(uintptr_t)memory));
	}
	OK(cuFileDriverClose());
}

static void *submit_again_and_again(void *argument)
{
	current();
	CUfileHandle_t handle = argument;
	char *memory = vram(MIB);
	CUfileBatchHandle_t batch;
	OK(cuFileBatchIOSetUp(&batch, 16));
	for (int round = 0; round < 50; round++) {
		CUfileIOParams_t entries[16];
		CUfileIOEvents_t events[16] = { 0 };
		for (int i = 0; i < 16; i++)
			entries[i] = entry(handle, CUFILE_READ, memory, 1000, i * 5000, i * 2000, i);
		OK(cuFileBatchIOSubmit(batch, 16, entries, 0));
		fetch(batch, 16, events);
		for (int i = 0; i < 16; i++)
			IS(events[i].ret, 1000);
	}
	holds(memory + 2000, 1000, 5000, SEED);
	cuFileBatchIODestroy(batch);
	return NULL;
}

static void threads_have_batches_of_their_own(void)
{
	int fd = make("file", MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		IS(pthread_create(&threads[i], NULL, submit_again_and_again, handle), 0);
	for (int i = 0; i < 4; i++)
		IS(pthread_join(threads[i], NULL), 0);
}

static const struct test tests[] = {
	TEST(batches_have_limits),
	TEST(a_full_batch_completes),
	TEST(batches_may_be_made_larger),
	TEST(entries_fail_one_by_one),
	TEST(a_timeout_is_kept),
	TEST(what_is_called_off_says_so),
	TEST(after_its_end_a_batch_moves_nothing),
	TEST(threads_have_batches_of_their_own),
};

MAIN(tests)
