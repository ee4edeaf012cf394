/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Requests in the order of a stream.
 */
#include "check.h"

#define SEED 13

/* What a request on a stream is told, in memory that stays. */
struct request {
	size_t size;
	off_t from, to;
	ssize_t result;
};

static CUfileHandle_t handle;
static int file;

static void begin(void)
{
	current();
	file = make("file", 8 * MIB, SEED, 0);
	handle = handle_of(file);
}

static CUstream stream(void)
{
	CUstream stream;
	CUDA(cuStreamCreate(&stream, 1));
	return stream;
}

static CUevent event(void)
{
	CUevent event;
	CUDA(cuEventCreate(&event, 0));
	return event;
}

static CUfileError_t read_async(void *base, struct request *request, CUstream stream)
{
	request->result = -12345;
	return cuFileReadAsync(handle, base, &request->size, &request->from, &request->to,
			       &request->result, stream);
}

/* A stream that stands still until it is let go: by a number in pinned memory. */
static volatile uint32_t *block(CUstream stream)
{
	void *gate;
	CUDA(cuMemHostAlloc(&gate, 4, 0));
	*(volatile uint32_t *)gate = 0;
	CUDA(cuStreamWaitValue32_v2(stream, (CUdeviceptr)(uintptr_t)gate, 1, 0));
	return gate;
}

static void requests_are_done_in_order(void)
{
	begin();
	CUstream one = stream();
	char *memory = vram(MIB);
	static struct request requests[32];
	void *copies;
	CUDA(cuMemHostAlloc(&copies, 32 * 4096, 0));
	mock_cuda_delay(300);
	/* Each read goes to the same place, and what is copied from there after it is what
	 * it read. */
	for (int i = 0; i < 32; i++) {
		requests[i] = (struct request){ 4096, i * 100000, 8192, 0 };
		OK(read_async(memory, &requests[i], one));
		CUDA(cuMemcpyDtoHAsync_v2((char *)copies + i * 4096,
					  (CUdeviceptr)(uintptr_t)memory + 8192, 4096, one));
	}
	CUDA(cuStreamSynchronize(one));
	for (int i = 0; i < 32; i++) {
		IS(requests[i].result, 4096);
		for (int j = 0; j < 4096; j++)
			IS(((unsigned char *)copies)[i * 4096 + j],
			   at((uint64_t)i * 100000 + (uint64_t)j, SEED));
	}
	CUDA(cuStreamDestroy_v2(one));
}

static void writes_take_what_the_stream_made(void)
{
	begin();
	CUstream one = stream();
	char *memory = vram(8192);
	void *data;
	CUDA(cuMemHostAlloc(&data, 8192, 0));
	for (int i = 0; i < 8192; i++)
		((unsigned char *)data)[i] = at((uint64_t)i + 4096, SEED + 1);
	mock_cuda_delay(3000);
	static struct request request = { 8192, 4096, 0, 0 };
	CUDA(cuMemcpyHtoDAsync_v2((CUdeviceptr)(uintptr_t)memory, data, 8192, one));
	OK(cuFileWriteAsync(handle, memory, &request.size, &request.from, &request.to,
			    &request.result, one));
	CUDA(cuStreamSynchronize(one));
	IS(request.result, 8192);
	file_holds(file, 8192, 4096, SEED + 1);
	file_holds(file, 4096, 12288, SEED);
}

static void nothing_moves_before_the_stream_comes_to_it(void)
{
	begin();
	CUstream one = stream();
	CUevent behind = event();
	char *memory = vram(MIB);
	static struct request request = { MIB, 0, 0, 0 };
	volatile uint32_t *gate = block(one);
	double begun = now();
	OK(read_async(memory, &request, one));
	CUDA(cuEventRecord(behind, one));
	CHECK(now() - begun < 5);
	/* Parameters count when the stream comes to the request. */
	request.size = 10000;
	request.from = 5000;
	request.to = 300;
	usleep(200000);
	IS(cuEventQuery(behind), CUDA_ERROR_NOT_READY);
	IS(request.result, -12345);
	untouched(memory, MIB);
	CODE(cuFileDriverClose(), CU_FILE_DRIVER_CLOSING);
	*gate = 1;
	CUDA(cuEventSynchronize(behind));
	IS(request.result, 10000);
	untouched(memory, 300);
	holds(memory + 300, 10000, 5000, SEED);
	untouched(memory + 10300, MIB - 10300);
	OK(cuFileDriverClose());
}

static void what_is_fixed_is_read_at_once(void)
{
	begin();
	CUstream one = stream();
	char *memory = vram(MIB);
	CODE(cuFileStreamRegister(one, 16), CU_FILE_INVALID_VALUE);
	CODE(cuFileStreamDeregister(one), CU_FILE_INVALID_VALUE);
	OK(cuFileStreamRegister(one, CU_FILE_STREAM_FIXED_FILE_OFFSET | CU_FILE_STREAM_FIXED_BUF_OFFSET |
					     CU_FILE_STREAM_FIXED_FILE_SIZE));
	static struct request request = { 4096, 8192, 100, 0 };
	volatile uint32_t *gate = block(one);
	OK(read_async(memory, &request, one));
	request.size = 5;
	request.from = 1;
	request.to = 0;
	*gate = 1;
	CUDA(cuStreamSynchronize(one));
	IS(request.result, 4096);
	holds(memory + 100, 4096, 8192, SEED);
	OK(cuFileStreamDeregister(one));
	/* And then no more. */
	gate = block(one);
	request = (struct request){ 4096, 0, 0, 0 };
	OK(read_async(memory, &request, one));
	request.size = 5;
	*gate = 1;
	CUDA(cuStreamSynchronize(one));
	IS(request.result, 5);
}

static void streams_do_not_wait_for_each_other(void)
{
	begin();
	CUstream streams[4];
	CUevent events[4];
	static struct request requests[4];
	char *memory = vram(4 * MIB);
	volatile uint32_t *gates[4];
	for (int i = 0; i < 4; i++) {
		streams[i] = stream();
		events[i] = event();
		gates[i] = block(streams[i]);
		requests[i] = (struct request){ MIB, i * (off_t)MIB, i * (off_t)MIB, 0 };
		OK(read_async(memory, &requests[i], streams[i]));
		CUDA(cuEventRecord(events[i], streams[i]));
	}
	/* The last one first; those before it still stand. */
	for (int i = 3; i >= 0; i--) {
		*gates[i] = 1;
		CUDA(cuEventSynchronize(events[i]));
		IS(requests[i].result, MIB);
		for (int j = 0; j < i; j++)
			IS(cuEventQuery(events[j]), CUDA_ERROR_NOT_READY);
	}
	holds(memory, 4 * MIB, 0, SEED);
}

static void the_default_stream_is_a_stream(void)
{
	begin();
	char *memory = vram(MIB);
	OK(cuFileBufRegister(memory, MIB, 0));
	static struct request requests[8];
	for (int i = 0; i < 8; i++) {
		requests[i] = (struct request){ 100000, i * 100000, i * 100000, 0 };
		OK(read_async(memory, &requests[i], NULL));
	}
	CUDA(cuStreamSynchronize(NULL));
	for (int i = 0; i < 8; i++)
		IS(requests[i].result, 100000);
	holds(memory, 800000, 0, SEED);
}

static void bad_requests_are_told_then_or_later(void)
{
	begin();
	CUstream one = stream();
	char *memory = vram(MIB);
	static struct request request = { 4096, 0, 0, 0 };
	CUfileHandle_t good = handle;
	handle = (void *)77;
	CODE(read_async(memory, &request, one), CU_FILE_HANDLE_NOT_REGISTERED);
	handle = good;
	CODE(read_async(NULL, &request, one), CU_FILE_INVALID_VALUE);
	CODE(read_async((void *)4096, &request, one), CU_FILE_CUDA_POINTER_INVALID);
	CODE(cuFileReadAsync(handle, memory, NULL, &request.from, &request.to, &request.result, one),
	     CU_FILE_INVALID_VALUE);
	CODE(cuFileReadAsync(handle, memory, &request.size, &request.from, &request.to, NULL, one),
	     CU_FILE_INVALID_VALUE);
	CODE(read_async(memory, &request, (CUstream)(uintptr_t)0x123450), CU_FILE_CUDA_DRIVER_ERROR);
	CODE(cuFileStreamRegister((CUstream)(uintptr_t)0x123450, 0), CU_FILE_INVALID_VALUE);
	mock_cuda_capture(true);
	CODE(read_async(memory, &request, one), CU_FILE_CUDA_DRIVER_ERROR);
	mock_cuda_capture(false);
	static const struct {
		struct request request;
		ssize_t result;
	} later[] = {
		{ { 4096, -1, 0, 0 }, -CU_FILE_INVALID_VALUE },
		{ { 4096, 0, -1, 0 }, -CU_FILE_INVALID_VALUE },
		{ { 4096, 0, MIB, 0 }, -CU_FILE_CUDA_POINTER_RANGE_ERROR },
		{ { 0, 0, 0, 0 }, 0 },
		{ { 4096, 100 * MIB, 0, 0 }, 0 },
		{ { 4096, 8 * MIB - 5, 0, 0 }, 5 },
	};
	for (size_t i = 0; i < sizeof(later) / sizeof(*later); i++) {
		request = later[i].request;
		OK(read_async(memory, &request, one));
		CUDA(cuStreamSynchronize(one));
		IS(request.result, later[i].result);
	}
	static const char *const fails[] = { "cuLaunchHostFunc", "cuStreamWaitValue32_v2" };
	for (int i = 0; i < 2; i++) {
		CUDA(cuStreamSynchronize(one));
		char *fresh = vram(8192);
		request = (struct request){ 4096, 0, 0, 0 };
		mock_cuda_fail(fails[i], 0, 719);
		CODE(read_async(fresh, &request, one), CU_FILE_CUDA_DRIVER_ERROR);
		CUDA(cuStreamSynchronize(one));
		usleep(50000);
		IS(request.result, -12345);
		untouched(fresh, 8192);
		/* The stream still takes requests. */
		OK(read_async(fresh, &request, one));
		CUDA(cuStreamSynchronize(one));
		IS(request.result, 4096);
	}
	/* The copy fails: the request does, and the stream goes on. */
	mock_cuda_fail("cuMemcpyHtoDAsync_v2", 0, 719);
	OK(read_async(memory, &request, one));
	CUDA(cuStreamSynchronize(one));
	IS(request.result, -CU_FILE_CUDA_DRIVER_ERROR);
	OK(cuFileDriverClose());
}

static void without_threads_there_are_no_streams(void)
{
	OK(cuFileSetParameterSizeT(CUFILE_PARAM_EXECUTION_MAX_IO_THREADS, 0));
	begin();
	CUfileDrvProps_t props;
	OK(cuFileDriverGetProperties(&props));
	IS(props.fflags & (1u << CU_FILE_STREAMS_SUPPORTED), 0);
	CUstream one = stream();
	static struct request request = { 4096, 0, 0, 0 };
	CODE(read_async(vram(4096), &request, one), CU_FILE_ASYNC_NOT_SUPPORTED);
	CODE(cuFileStreamRegister(one, 0), CU_FILE_ASYNC_NOT_SUPPORTED);
}

static void *enqueue_again_and_again(void *argument)
{
	(void)argument;
	current();
	CUstream one = stream();
	char *memory = vram(MIB);
	struct request *requests = calloc(100, sizeof(*requests));
	for (int i = 0; i < 100; i++) {
		requests[i] = (struct request){ 10000, i * 10000, i * 10000, 0 };
		OK(read_async(memory, &requests[i], one));
	}
	CUDA(cuStreamSynchronize(one));
	for (int i = 0; i < 100; i++)
		IS(requests[i].result, 10000);
	holds(memory, 1000000, 0, SEED);
	free(requests);
	CUDA(cuStreamDestroy_v2(one));
	return NULL;
}

static void threads_have_streams_of_their_own(void)
{
	begin();
	pthread_t threads[6];
	for (int i = 0; i < 6; i++)
		IS(pthread_create(&threads[i], NULL, enqueue_again_and_again, NULL), 0);
	for (int i = 0; i < 6; i++)
		IS(pthread_join(threads[i], NULL), 0);
	OK(cuFileDriverClose());
}

static const struct test tests[] = {
	TEST(requests_are_done_in_order),
	TEST(writes_take_what_the_stream_made),
	TEST(nothing_moves_before_the_stream_comes_to_it),
	TEST(what_is_fixed_is_read_at_once),
	TEST(streams_do_not_wait_for_each_other),
	TEST(the_default_stream_is_a_stream),
	TEST(bad_requests_are_told_then_or_later),
	TEST(without_threads_there_are_no_streams),
	TEST(threads_have_streams_of_their_own),
};

MAIN(tests)
