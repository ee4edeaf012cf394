/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A process that ends in one way or another after it used the library. It loads it, and
 * may unload it.
 *
 * usage: life close|none|atexit|dlclose|exec|_exit LEVEL
 */
#include "check.h"
#include <dlfcn.h>

#define SEED 19

static void *library;

static void *find(const char *name)
{
	void *function = dlsym(library, name);
	CHECK(function != NULL);
	return function;
}

static CUfileError_t (*close_library)(void);

static void close_at_exit(void)
{
	OK(close_library());
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	const char *how = argv[1];
	library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
	CHECK(library != NULL);
	CUfileError_t (*open_library)(void) = find("cuFileDriverOpen");
	close_library = find("cuFileDriverClose");
	CUfileError_t (*set_level)(int) = find("cuFileSetStatsLevel");
	CUfileError_t (*start)(void) = find("cuFileStatsStart");
	CUfileError_t (*handle_register)(CUfileHandle_t *, CUfileDescr_t *) = find("cuFileHandleRegister");
	CUfileError_t (*buf_register)(const void *, size_t, int) = find("cuFileBufRegister");
	ssize_t (*read_)(CUfileHandle_t, void *, size_t, off_t, off_t) = find("cuFileRead");

	current();
	OK(set_level(atoi(argv[2])));
	OK(open_library());
	OK(start());
	CUfileHandle_t handle;
	CUfileDescr_t descr = { .type = CU_FILE_HANDLE_TYPE_OPAQUE_FD,
				.handle.fd = make("file", 8 * MIB, SEED, 0) };
	OK(handle_register(&handle, &descr));
	char *memory = vram(8 * MIB);
	OK(buf_register(memory, 8 * MIB, 0));
	/* Large enough for the threads. */
	IS(read_(handle, memory, 8 * MIB, 0, 0), 8 * MIB);
	holds(memory, 8 * MIB, 0, SEED);

	if (strcmp(how, "close") == 0)
		OK(close_library());
	else if (strcmp(how, "atexit") == 0)
		IS(atexit(close_at_exit), 0);
	else if (strcmp(how, "dlclose") == 0)
		IS(dlclose(library), 0);
	else if (strcmp(how, "_exit") == 0)
		_exit(0);
	else
		CHECK(strcmp(how, "none") == 0);
	return 0;
}
