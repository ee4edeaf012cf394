/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * KvikIO's C++ library, as it is: it loads libcufile.so.0 and the driver itself. Reads a
 * file, a half by tasks of its threads and a half on a stream, and writes it out so.
 *
 * usage: kvikio-client FILE COPY BYTES
 */
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <kvikio/buffer.hpp>
#include <kvikio/defaults.hpp>
#include <kvikio/file_handle.hpp>

#include "place.h"

static void check(bool is_so, char const *what)
{
	if (!is_so) {
		std::fprintf(stderr, "not so: %s\n", what);
		std::exit(1);
	}
}

static void run(char const *from, char const *to, std::size_t len)
{
	auto const address = placed(len);
	auto const base = reinterpret_cast<char *>(address);
	std::size_t const half = len / 2;
	off_t const behind = static_cast<off_t>(half);
	CUstream stream;
	check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0, "a stream");
	kvikio::memory_register(base);
	kvikio::defaults::set_thread_pool_nthreads(2);
	{
		kvikio::FileHandle file(from, "r");
		auto const &mode = file.get_compat_mode_manager();
		std::printf("compat=%d %d\n", mode.is_compat_mode_preferred(),
			    mode.is_compat_mode_preferred_for_async());
		check(file.pread(base, half, 0, 1 << 20).get() == half,
		      "all of the first half is read");
		check(file.read_async(base, half, behind, behind, stream).check_bytes_done() == half,
		      "all of the second half is read");
	}
	{
		kvikio::FileHandle copy(to, "w+");
		check(copy.pwrite(base, half, 0, 1 << 20).get() == half,
		      "all of the first half is written");
		check(copy.write_async(base, half, behind, behind, stream).check_bytes_done() == half,
		      "all of the second half is written");
	}
	kvikio::memory_deregister(base);
}

int main(int argc, char **argv)
{
	check(argc == 4, "three arguments");
	try {
		run(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
	} catch (std::exception const &error) {
		std::fprintf(stderr, "KvikIO: %s\n", error.what());
		return 3;
	}
	return 0;
}
