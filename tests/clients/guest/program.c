/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A client in C, against the public header. Reads a third of a file by each of the three
 * ways, writes it out by each of them, and says what the statistics have of that.
 *
 * usage: cufile-program FILE COPY BYTES
 */
#include "check.h"
#include "place.h"

#define ENTRIES 8

static char *base;
static size_t third;

static CUfileHandle_t open_file(const char *path, int flags)
{
	int fd = open(path, flags | O_DIRECT, 0600);
	CHECK(fd >= 0);
	return handle_of(fd);
}

static void by_batch(CUfileHandle_t file, CUfileOpcode_t opcode)
{
	CUfileBatchHandle_t batch;
	CUfileIOParams_t entries[ENTRIES];
	CUfileIOEvents_t events[ENTRIES];
	size_t part = third / ENTRIES;
	memset(entries, 0, sizeof(entries));
	for (size_t i = 0; i < ENTRIES; i++) {
		entries[i].mode = CUFILE_BATCH;
		entries[i].fh = file;
		entries[i].opcode = opcode;
		entries[i].cookie = &entries[i];
		entries[i].u.batch.devPtr_base = base;
		entries[i].u.batch.devPtr_offset = (off_t)(third + i * part);
		entries[i].u.batch.file_offset = (off_t)(third + i * part);
		entries[i].u.batch.size = part;
	}
	OK(cuFileBatchIOSetUp(&batch, ENTRIES));
	OK(cuFileBatchIOSubmit(batch, ENTRIES, entries, 0));
	for (unsigned done = 0; done < ENTRIES;) {
		unsigned count = ENTRIES - done;
		OK(cuFileBatchIOGetStatus(batch, 1, &count, events, NULL));
		for (unsigned i = 0; i < count; i++) {
			IS(events[i].status, CUFILE_COMPLETE);
			IS(events[i].ret, part);
		}
		done += count;
	}
	cuFileBatchIODestroy(batch);
}

static void by_stream(CUfileHandle_t file, CUfileOpcode_t opcode)
{
	CUstream stream;
	static size_t size;
	static off_t place;
	static ssize_t moved;
	size = third;
	place = (off_t)(2 * third);
	CUDA(cuStreamCreate(&stream, 1));
	OK(cuFileStreamRegister(stream, 0xf));
	if (opcode == CUFILE_READ)
		OK(cuFileReadAsync(file, base, &size, &place, &place, &moved, stream));
	else
		OK(cuFileWriteAsync(file, base, &size, &place, &place, &moved, stream));
	CUDA(cuStreamSynchronize(stream));
	IS(moved, third);
	OK(cuFileStreamDeregister(stream));
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	size_t len = (size_t)atoll(argv[3]);
	third = len / 3;
	CHECK(third % (ENTRIES * 4096) == 0 && third * 3 == len);
	base = (char *)(uintptr_t)placed(len);
	OK(cuFileSetStatsLevel(3));
	CUfileError_t opened = cuFileDriverOpen();
	if (opened.err != CU_FILE_SUCCESS) {
		fprintf(stderr, "%s\n", cufileop_status_error(opened.err));
		return 3;
	}
	OK(cuFileStatsStart());
	CUfileDrvProps_t properties;
	OK(cuFileDriverGetProperties(&properties));
	printf("nvme=%d\n", properties.nvfs.dstatusflags >> CU_FILE_NVME_SUPPORTED & 1);
	OK(cuFileBufRegister(base, len, 0));

	CUfileHandle_t file = open_file(argv[1], O_RDONLY);
	IS(cuFileRead(file, base, third, 0, 0), third);
	by_batch(file, CUFILE_READ);
	by_stream(file, CUFILE_READ);

	CUfileHandle_t copy = open_file(argv[2], O_RDWR | O_CREAT | O_TRUNC);
	IS(cuFileWrite(copy, base, third, 0, 0), third);
	by_batch(copy, CUFILE_WRITE);
	by_stream(copy, CUFILE_WRITE);

	static CUfileStatsLevel3_t stats;
	OK(cuFileGetStatsL3(&stats));
	CUfilePerGpuStats_t *gpu = &stats.per_gpu_stats[0];
	CUfileStatsLevel1_t *all = &stats.detailed.basic;
	printf("bytes=%llu %llu\n",
	       (unsigned long long)(all->read_bytes + all->batch_read_bytes),
	       (unsigned long long)(all->write_bytes + all->batch_write_bytes));
	printf("nvfs=%llu %llu\n", (unsigned long long)gpu->n_nvfs_reads,
	       (unsigned long long)gpu->n_nvfs_writes);
	printf("p2p=%llu %llu\n", (unsigned long long)gpu->n_p2p_reads,
	       (unsigned long long)gpu->n_p2p_writes);
	printf("posix=%llu %llu\n", (unsigned long long)gpu->n_posix_reads,
	       (unsigned long long)gpu->n_posix_writes);
	cuFileHandleDeregister(file);
	cuFileHandleDeregister(copy);
	OK(cuFileBufDeregister(base));
	OK(cuFileDriverClose());
	IS(mock_cuda_faults(), 0);
	return 0;
}
