// SPDX-License-Identifier: Apache-2.0
/* Preloaded: one process behaves as on a kernel with pages of 64 KiB. sysconf() reports them,
 * mappings start at multiples of them, and offsets and addresses that such a kernel rejects end the
 * process if libivycomm uses them; NumPy 1.24 rounds to 4 KiB itself. Calls inside the C library
 * are not changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE ((size_t)64 << 10)

static size_t whole(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static void check(const char* call, uint64_t value, void* caller) {
  Dl_info library;
  if (value % PAGE == 0 || !dladdr(caller, &library) || !strstr(library.dli_fname, "ivycomm"))
    return;
  fprintf(stderr, "large_pages: %s at %#llx, which is not a multiple of 64 KiB\n", call,
          (unsigned long long)value);
  abort();
}

static void* plain_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return (void*)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

static void* large_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset,
                        void* caller) {
  if (fd >= 0) check("mmap(): offset", (uint64_t)offset, caller);
  if (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) {
    check("mmap()", (uintptr_t)at, caller);
    return plain_mmap(at, bytes, protection, flags, fd, offset);
  }
  /* The page after the last one that is used stays reserved, as part of the last large page. */
  const size_t room = whole(bytes) + PAGE;
  const int reserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* const begin = plain_mmap(NULL, room, PROT_NONE, reserve, -1, 0);
  if (begin == MAP_FAILED) return MAP_FAILED;
  char* const aligned = (char*)whole((uintptr_t)begin);
  void* const mapped = plain_mmap(aligned, bytes, protection, flags | MAP_FIXED, fd, offset);
  if (mapped == MAP_FAILED) {
    syscall(SYS_munmap, begin, room);
    return MAP_FAILED;
  }
  if (aligned > begin) syscall(SYS_munmap, begin, aligned - begin);
  char* const end = aligned + whole(bytes);
  if (end < begin + room) syscall(SYS_munmap, end, begin + room - end);
  return mapped;
}

void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return large_mmap(at, bytes, protection, flags, fd, offset, __builtin_return_address(0));
}

void* mmap64(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return large_mmap(at, bytes, protection, flags, fd, offset, __builtin_return_address(0));
}

int munmap(void* at, size_t bytes) {
  check("munmap()", (uintptr_t)at, __builtin_return_address(0));
  return (int)syscall(SYS_munmap, at, (uintptr_t)at % PAGE == 0 ? whole(bytes) : bytes);
}

int madvise(void* at, size_t bytes, int advice) {
  check("madvise()", (uintptr_t)at, __builtin_return_address(0));
  return (int)syscall(SYS_madvise, at, bytes, advice);
}

long sysconf(int name) {
  static long (*real)(int);
  if (name == _SC_PAGESIZE) return (long)PAGE;
  if (real == NULL) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  return real(name);
}

int getpagesize(void) { return (int)PAGE; }
