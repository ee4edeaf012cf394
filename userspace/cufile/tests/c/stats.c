/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Statistics, parameters, properties: what is written into callers' buffers, and what it
 * says.
 */
#include "check.h"

#define SEED 17

/* A structure with something behind it that nobody may touch. */
#define GUARDED(type, name)                                                              \
	struct {                                                                         \
		type value;                                                              \
		unsigned char guard[256];                                                \
	} name;                                                                          \
	memset(&name, 0x5c, sizeof(name))

#define UNTOUCHED(name)                                                                  \
	do {                                                                             \
		for (size_t i_ = 0; i_ < sizeof(name.guard); i_++)                       \
			IS(name.guard[i_], 0x5c);                                        \
	} while (0)

static void buffers_are_not_overrun(void)
{
	current();
	OK(cuFileSetStatsLevel(3));
	OK(cuFileDriverOpen());
	GUARDED(CUfileStatsLevel1_t, one);
	OK(cuFileGetStatsL1(&one.value));
	UNTOUCHED(one);
	GUARDED(CUfileStatsLevel2_t, two);
	OK(cuFileGetStatsL2(&two.value));
	UNTOUCHED(two);
	GUARDED(CUfileStatsLevel3_t, three);
	OK(cuFileGetStatsL3(&three.value));
	UNTOUCHED(three);
	IS(three.value.num_gpus, 2);
	GUARDED(CUfileDrvProps_t, props);
	OK(cuFileDriverGetProperties(&props.value));
	UNTOUCHED(props);
	GUARDED(int, version);
	OK(cuFileGetVersion(&version.value));
	UNTOUCHED(version);
#ifdef CUFILE_VECTORS
	IS(version.value, 1190);
	IS(sizeof(one.value), 624);
#else
	IS(version.value, 1180);
	IS(sizeof(one.value), 512);
#endif
	GUARDED(bool, truth);
	OK(cuFileGetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, &truth.value));
	UNTOUCHED(truth);
	CHECK(truth.value);
	GUARDED(char, text);
	CODE(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, &text.value, 1),
	     CU_FILE_INVALID_VALUE);
	UNTOUCHED(text);
	char level[8];
	OK(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, level, sizeof(level)));
	IS(strcmp(level, "WARN"), 0);
	GUARDED(size_t, bar);
	cuFileGetBARSizeInKB(0, &bar.value);
	UNTOUCHED(bar);
	CODE(cuFileGetBARSizeInKB(7, &bar.value), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetBARSizeInKB(-1, &bar.value), CU_FILE_INVALID_VALUE);
}

static void null_is_refused(void)
{
	OK(cuFileSetStatsLevel(3));
	OK(cuFileDriverOpen());
	CODE(cuFileGetStatsL1(NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetStatsL2(NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetStatsL3(NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetStatsLevel(NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileDriverGetProperties(NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetVersion(NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetParameterSizeT(0, NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetParameterBool(0, NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetParameterString(0, NULL, 10), CU_FILE_INVALID_VALUE);
	CODE(cuFileSetParameterString(0, NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileExportPCIeTopology(NULL), CU_FILE_INVALID_VALUE);
	size_t value;
	CODE(cuFileGetParameterMinMaxValue(0, &value, NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetParameterMinMaxValue(0, NULL, &value), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetParameterPosixPoolSlabArray(NULL, &value, 3), CU_FILE_INVALID_VALUE);
}

static void a_level_gives_what_it_has(void)
{
	CUfileStatsLevel1_t one;
	CUfileStatsLevel2_t two;
	CUfileStatsLevel3_t three;
	int level;
	CODE(cuFileSetStatsLevel(4), CU_FILE_INVALID_VALUE);
	CODE(cuFileSetStatsLevel(-1), CU_FILE_INVALID_VALUE);
	CODE(cuFileStatsStart(), CU_FILE_DRIVER_NOT_INITIALIZED);
	CODE(cuFileGetStatsL1(&one), CU_FILE_DRIVER_NOT_INITIALIZED);
	OK(cuFileDriverOpen());
	OK(cuFileGetStatsLevel(&level));
	IS(level, 0);
	CODE(cuFileGetStatsL1(&one), CU_FILE_INVALID_VALUE);
	OK(cuFileSetStatsLevel(1));
	OK(cuFileGetStatsL1(&one));
	CODE(cuFileGetStatsL2(&two), CU_FILE_INVALID_VALUE);
	OK(cuFileSetStatsLevel(2));
	OK(cuFileGetStatsL2(&two));
	CODE(cuFileGetStatsL3(&three), CU_FILE_INVALID_VALUE);
	OK(cuFileSetStatsLevel(3));
	OK(cuFileGetStatsL3(&three));
}

static void everything_is_counted_once(void)
{
	current();
	OK(cuFileSetStatsLevel(3));
	OK(cuFileDriverOpen());
	OK(cuFileStatsStart());
	int fd = make("file", 8 * MIB, SEED, 0);
	CUfileHandle_t handle = handle_of(fd);
	IS(try_handle(fd), CU_FILE_HANDLE_ALREADY_REGISTERED);
	char *memory = vram(8 * MIB);
	OK(cuFileBufRegister(memory, 8 * MIB, 0));
	CODE(cuFileBufRegister(memory, 8 * MIB, 0), CU_FILE_MEMORY_ALREADY_REGISTERED);
	uint64_t read = 0, wrote = 0;
	for (int i = 0; i < 10; i++) {
		IS(cuFileRead(handle, memory, 1000 << i, 0, 0), 1000 << i);
		read += 1000 << i;
	}
	IS(cuFileRead(handle, memory, 8 * MIB, 0, 0), 8 * MIB);
	IS(cuFileRead(handle, memory, 4096, 8 * MIB - 100, 0), 100);
	read += 8 * MIB + 100;
	IS(cuFileRead(NULL, memory, 4096, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
	IS(cuFileRead(handle, memory, 8192, 0, 8 * MIB), -CU_FILE_INVALID_MAPPING_RANGE);
	IS(cuFileWrite(handle, memory, 70000, 5, 0), 70000);
	wrote += 70000;
	/* Host memory is no GPU's. */
	static unsigned char host[5000];
	IS(cuFileRead(handle, host, 5000, 0, 0), 5000);
	read += 5000;
	static size_t size = 4096;
	static off_t zero;
	static ssize_t result;
	OK(cuFileReadAsync(handle, memory, &size, &zero, &zero, &result, NULL));
	CUDA(cuStreamSynchronize(NULL));
	IS(result, 4096);
	read += 4096;

	CUfileBatchHandle_t batch;
	OK(cuFileBatchIOSetUp(&batch, 4));
	CODE(cuFileBatchIOSetUp(&batch, 0), CU_FILE_INVALID_VALUE);
	CUfileIOParams_t entries[4];
	memset(entries, 0, sizeof(entries));
	for (int i = 0; i < 4; i++) {
		entries[i].mode = CUFILE_BATCH;
		entries[i].fh = i == 3 ? (void *)99 : handle;
		entries[i].opcode = i == 2 ? CUFILE_WRITE : CUFILE_READ;
		entries[i].u.batch.devPtr_base = memory;
		entries[i].u.batch.devPtr_offset = i * 10000;
		entries[i].u.batch.size = 10000;
	}
	CUfileIOEvents_t events[4];
	unsigned nr = 4;
	OK(cuFileBatchIOSubmit(batch, 4, entries, 0));
	OK(cuFileBatchIOGetStatus(batch, 4, &nr, events, NULL));
	IS(nr, 4);
	nr = 4;
	OK(cuFileBatchIOSubmit(batch, 1, entries, 0));
	OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
	CODE(cuFileBatchIOSubmit(batch, 9, entries, 0), CU_FILE_INVALID_VALUE);
	OK(cuFileBatchIOCancel(batch));
	cuFileBatchIODestroy(batch);
#ifdef CUFILE_VECTORS
	CUfileIOVec_t vector[] = { { memory, 3000 }, { memory + 4096, 500 } };
	IS(cuFileReadv(handle, vector, 2, 0, 0), 3500);
	IS(cuFileReadv(handle, vector, 2, -1, 0), -CU_FILE_INVALID_VALUE);
	IS(cuFileWritev(handle, vector, 1, 0, 0), 3000);
#endif
	OK(cuFileBufDeregister(memory));
	CODE(cuFileBufDeregister(memory), CU_FILE_MEMORY_NOT_REGISTERED);
	cuFileHandleDeregister(handle);
	cuFileHandleDeregister(handle);
	OK(cuFileStatsStop());

	CUfileStatsLevel3_t stats;
	OK(cuFileGetStatsL3(&stats));
	const CUfileStatsLevel1_t *one = &stats.detailed.basic;
#define COUNTER(name, wanted_ok, wanted_err)                                             \
	do {                                                                             \
		IS(one->name.ok, wanted_ok);                                             \
		IS(one->name.err, wanted_err);                                           \
	} while (0)
	COUNTER(read_ops, 14, 2);
	COUNTER(write_ops, 1, 0);
	COUNTER(hdl_register_ops, 1, 1);
	COUNTER(hdl_deregister_ops, 1, 1);
	COUNTER(buf_register_ops, 1, 1);
	COUNTER(buf_deregister_ops, 1, 1);
	IS(one->read_bytes, read);
	IS(one->write_bytes, wrote);
	COUNTER(batch_setup_ops, 1, 1);
	COUNTER(batch_submit_ops, 2, 1);
	COUNTER(batch_complete_ops, 1, 1);
	COUNTER(batch_cancel_ops, 1, 0);
	COUNTER(batch_destroy_ops, 1, 0);
	COUNTER(batch_enqueued_ops, 4, 1);
	COUNTER(batch_posix_enqueued_ops, 4, 0);
	COUNTER(batch_processed_ops, 4, 0);
	COUNTER(batch_posix_processed_ops, 4, 0);
	COUNTER(batch_nvfs_submit_ops, 0, 0);
	COUNTER(batch_p2p_submit_ops, 0, 0);
	COUNTER(batch_total_submit_ops, 2, 1);
	IS(one->batch_read_bytes, 30000);
	IS(one->batch_write_bytes, 10000);
	IS(one->last_batch_read_bytes, 10000);
	IS(one->last_batch_write_bytes, 0);
	IS(one->read_lat_avg_us, one->read_lat_sum_us / 14);
	CHECK(one->read_bw_bytes_per_sec > 0 && one->read_ops_per_sec > 0);
#ifdef CUFILE_VECTORS
	COUNTER(readv_ops, 1, 1);
	COUNTER(writev_ops, 1, 0);
	IS(one->readv_bytes, 3500);
	IS(one->writev_bytes, 3000);
	const uint64_t vectors = 1;
#else
	const uint64_t vectors = 0;
#endif
	/* 1000 to 512000 bytes by doubling, 8 MiB, 4096 three times (one of them on a
	 * stream), 8192, 5000. */
	static const uint64_t lengths[16] = { 3, 3 + 2, 1 + 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1 };
	uint64_t sum = 0;
	for (int i = 0; i < 32; i++) {
		sum += stats.detailed.read_size_kb_hist[i];
		if (i < 16)
			IS(stats.detailed.read_size_kb_hist[i], lengths[i]);
		IS(stats.detailed.write_size_kb_hist[i], i == 5 ? 1 : 0);
	}
	IS(sum, 16);
	IS(stats.num_gpus, 2);
	const CUfilePerGpuStats_t *gpu = &stats.per_gpu_stats[0];
	IS((unsigned char)gpu->uuid[0], 0xa0);
	IS((unsigned char)stats.per_gpu_stats[1].uuid[15], 0xa1);
	IS(gpu->read_bytes, read - 5000 + 30000 + vectors * 3500);
	/* 13 reads of device memory, 3 entries of batches. */
	IS(gpu->n_total_reads, 13 + 3 + vectors);
	IS(gpu->n_posix_reads, 13 + 3 + vectors);
	IS(gpu->n_p2p_reads, 0);
	IS(gpu->n_nvfs_reads, 0);
	IS(gpu->n_reads_err, 0);
	IS(gpu->writes_bytes, wrote + 10000 + vectors * 3000);
	IS(gpu->n_total_writes, 2 + vectors);
	IS(gpu->n_posix_writes, 2 + vectors);
	IS(gpu->n_mmap, 2);
	IS(gpu->n_mmap_ok, 1);
	IS(gpu->n_mmap_err, 1);
	IS(gpu->n_mmap_free, 1);
	IS(gpu->reg_bytes, 8 * MIB);
	for (size_t i = 0; i < sizeof(*gpu) - 16; i++)
		IS(((const char *)&stats.per_gpu_stats[1])[16 + i], 0);
	OK(cuFileStatsReset());
	OK(cuFileGetStatsL3(&stats));
	IS(stats.detailed.basic.read_ops.ok, 0);
	IS(stats.per_gpu_stats[0].read_bytes, 0);
}

static void parameters_are_kept_until_the_library_is_opened(void)
{
	size_t size, least, most;
	bool truth;
	OK(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, &size));
	IS(size, 16384);
	OK(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, 1024));
	OK(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, 2048));
	OK(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, &size));
	IS(size, 2048);
	OK(cuFileDriverSetMaxDirectIOSize(4096));
	CUfileDrvProps_t props;
	OK(cuFileDriverGetProperties(&props));
	IS(props.nvfs.max_direct_io_size, 4096);
	OK(cuFileGetParameterMinMaxValue(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &least, &most));
	IS(least, 1);
	CODE(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, most + 1),
	     CU_FILE_INVALID_VALUE);
	CODE(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileSetParameterSizeT(99, 1), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetParameterSizeT(99, &size), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetParameterMinMaxValue(99, &least, &most), CU_FILE_INVALID_VALUE);
	CODE(cuFileSetParameterBool(CUFILE_PARAM_PROFILE_NVTX, true), CU_FILE_INVALID_VALUE);
	CODE(cuFileGetParameterBool(CUFILE_PARAM_PROFILE_NVTX, &truth), CU_FILE_INVALID_VALUE);
	OK(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, true));
	OK(cuFileGetParameterBool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, &truth));
	CHECK(truth);
	OK(cuFileDriverGetProperties(&props));
	IS(props.nvfs.dcontrolflags, 1u << CU_FILE_USE_POLL_MODE | 1u << CU_FILE_ALLOW_COMPAT_MODE);
	CHECK(props.nvfs.major_version > 0);
	IS(props.nvfs.dstatusflags, 0);
	CODE(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "loud"), CU_FILE_INVALID_VALUE);
	OK(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "debug"));
	size_t sizes[3] = { 4, 8, 16 }, counts[3] = { 3, 2, 1 }, got[3], many[3];
	OK(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 3));
	CODE(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 0), CU_FILE_INVALID_VALUE);
	CODE(cuFileSetParameterGpuBounceBufferSlabArray(counts, counts, 3), CU_FILE_INVALID_VALUE);
	OK(cuFileGetParameterPosixPoolSlabArray(got, many, 3));
	CHECK(memcmp(got, sizes, sizeof(got)) == 0 && memcmp(many, counts, sizeof(many)) == 0);
	CODE(cuFileGetParameterPosixPoolSlabArray(got, many, 2), CU_FILE_INVALID_VALUE);

	OK(cuFileDriverOpen());
	OK(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, &size));
	IS(size, 4096);
	CODE(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, 8),
	     CU_FILE_DRIVER_ALREADY_OPEN);
	CODE(cuFileSetParameterBool(CUFILE_PARAM_FORCE_COMPAT_MODE, true), CU_FILE_DRIVER_ALREADY_OPEN);
	CODE(cuFileSetParameterString(CUFILE_PARAM_LOG_DIR, "/tmp"), CU_FILE_DRIVER_ALREADY_OPEN);
	CODE(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 3), CU_FILE_DRIVER_ALREADY_OPEN);
	/* These have no effect then, and no error. */
	OK(cuFileDriverSetMaxDirectIOSize(16));
	OK(cuFileDriverSetPollMode(false, 8));
	OK(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, &size));
	IS(size, 4096);
	OK(cuFileDriverClose());
	/* What was staged is gone. */
	OK(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, &size));
	IS(size, 16384);
}

/* Without leave for compatibility mode nothing is copied through the host. The mock has no
 * kernel module, so nothing at all can be done. */
static void without_leave_nothing_is_copied(void)
{
	current();
	int fd = make("file", MIB, SEED, 0);
	OK(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, false));
	CODE(cuFileDriverOpen(), CU_FILE_DRIVER_NOT_INITIALIZED);
	IS(try_handle(fd), CU_FILE_DRIVER_NOT_INITIALIZED);
	char *memory = vram(4096);
	IS(cuFileRead((void *)1, memory, 4096, 0, 0), -CU_FILE_DRIVER_NOT_INITIALIZED);
	untouched(memory, 4096);
	IS(mock_cuda_calls("cuMemcpyHtoDAsync_v2"), 0);
	IS(cuFileUseCount(), 0);
	/* With leave it goes. */
	OK(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, true));
	OK(cuFileDriverOpen());
	IS(cuFileRead(handle_of(fd), memory, 4096, 0, 0), 4096);
}

static void flags_say_what_can_go_direct(void)
{
	CUfileP2PFlags_t flags;
#ifdef CUFILE_VECTORS
	CODE(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags), CU_FILE_DRIVER_NOT_INITIALIZED);
	OK(cuFileDriverOpen());
	OK(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags));
	IS(flags, 0);
	CODE(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, NULL), CU_FILE_INVALID_VALUE);
	CODE(cuFileDriverGetP2PFlags(CU_FILE_MAX_TARGET_TYPES, &flags), CU_FILE_INVALID_VALUE);
	CODE(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, CU_FILE_P2P_FLAG_PCI_P2PDMA),
	     CU_FILE_PLATFORM_NOT_SUPPORTED);
#else
	(void)flags;
#endif
}

static void the_topology_can_be_exported(void)
{
	CUfileError_t error = cuFileExportPCIeTopology("topology.json");
	if (error.err == CU_FILE_INTERNAL_ERROR)
		return; /* The kernel shows no PCI devices here. */
	IS(error.err, 0);
	char text[64] = { 0 };
	int fd = open("topology.json", O_RDONLY);
	CHECK(read(fd, text, sizeof(text) - 1) > 0);
	CHECK(text[0] == '{');
	CODE(cuFileExportPCIeTopology("no/such/directory"), CU_FILE_INVALID_VALUE);
}

static const struct test tests[] = {
	TEST(buffers_are_not_overrun),
	TEST(null_is_refused),
	TEST(a_level_gives_what_it_has),
	TEST(everything_is_counted_once),
	TEST(parameters_are_kept_until_the_library_is_opened),
	TEST(without_leave_nothing_is_copied),
	TEST(flags_say_what_can_go_direct),
	TEST(the_topology_can_be_exported),
};

MAIN(tests)
