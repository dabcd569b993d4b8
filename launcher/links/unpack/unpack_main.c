// SPDX-License-Identifier: Apache-2.0
// unpack OFFSET: decompresses its standard input from that byte on (zstd) to its standard output.
// Sent in front of each bundle, for hosts without zstd. It has no C library: a static one would be
// a fifth of the bundle.
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <zstd.h>

#if defined(__x86_64__)
static long call(long number, long a, long b, long c, long d, long e, long f) {
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
// Stands for the thread control block, from which libzstd's code reads the stack guard.
static long thread_block[16];
static void prepare(void) {
  enum { kSetFs = 0x1002 };
  call(SYS_arch_prctl, kSetFs, (long)thread_block, 0, 0, 0, 0);
}
__asm__(
    ".globl _start\n_start:\n  xor %ebp, %ebp\n  mov %rsp, %rdi\n  and $-16, %rsp\n  call begin\n");
#elif defined(__aarch64__)
static long call(long number, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
}
uintptr_t __stack_chk_guard = 0x5bd1e995;
static void prepare(void) {}
__asm__(".globl _start\n_start:\n  mov x29, #0\n  mov x0, sp\n  b begin\n");
#else
#error "unpack has no system calls for this architecture yet"
#endif

enum { kInterrupted = 4 };

static void leave(int code) {
  for (;;) call(SYS_exit_group, code, 0, 0, 0, 0, 0);
}

static size_t length_of(const char* text) {
  size_t length = 0;
  while (text[length] != '\0') ++length;
  return length;
}

static void fail(const char* why) {
  call(SYS_write, 2, (long)why, (long)length_of(why), 0, 0, 0);
  call(SYS_write, 2, (long)"\n", 1, 0, 0, 0);
  leave(1);
}

// The functions of a C library that libzstd calls.
void __stack_chk_fail(void) { fail("unpack: the stack is damaged"); }
void* memcpy(void* to, const void* from, size_t size) {
  for (size_t i = 0; i < size; ++i) ((char*)to)[i] = ((const char*)from)[i];
  return to;
}
void* memmove(void* to, const void* from, size_t size) {
  if ((uintptr_t)to <= (uintptr_t)from) return memcpy(to, from, size);
  while (size-- > 0) ((char*)to)[size] = ((const char*)from)[size];
  return to;
}
void* memset(void* to, int byte, size_t size) {
  for (size_t i = 0; i < size; ++i) ((char*)to)[i] = (char)byte;
  return to;
}
void* malloc(size_t size) {
  enum { kReadWrite = 3, kPrivateAnonymous = 0x22 };
  const long address =
      call(SYS_mmap, 0, (long)(size + !size), kReadWrite, kPrivateAnonymous, -1, 0);
  return address < 0 && address > -4096 ? NULL : (void*)address;
}
void* calloc(size_t count, size_t size) { return malloc(count * size); }
void free(void* memory) { (void)memory; }

static void write_all(const char* bytes, size_t size) {
  while (size > 0) {
    const long count = call(SYS_write, 1, (long)bytes, (long)size, 0, 0, 0);
    if (count == -kInterrupted) continue;
    if (count <= 0) fail("unpack: its output cannot be written");
    bytes += count;
    size -= (size_t)count;
  }
}

static void unpack(void) {
  ZSTD_DStream* const stream = ZSTD_createDStream();
  const size_t in_size = ZSTD_DStreamInSize(), out_size = ZSTD_DStreamOutSize();
  char* const in_bytes = malloc(in_size);
  char* const out_bytes = malloc(out_size);
  if (stream == NULL || in_bytes == NULL || out_bytes == NULL) fail("unpack: out of memory");
  size_t wanted = 1;
  for (;;) {
    const long count = call(SYS_read, 0, (long)in_bytes, (long)in_size, 0, 0, 0);
    if (count == -kInterrupted) continue;
    if (count < 0) fail("unpack: the bundle cannot be read");
    if (count == 0) break;
    ZSTD_inBuffer in = {in_bytes, (size_t)count, 0};
    while (in.pos < in.size) {
      ZSTD_outBuffer out = {out_bytes, out_size, 0};
      wanted = ZSTD_decompressStream(stream, &out, &in);
      if (ZSTD_isError(wanted)) fail("unpack: the bundle is damaged");
      write_all(out_bytes, out.pos);
    }
    // A full output buffer means that libzstd may hold more output.
    for (;;) {
      ZSTD_outBuffer out = {out_bytes, out_size, 0};
      if (wanted == 0) break;
      wanted = ZSTD_decompressStream(stream, &out, &in);
      if (ZSTD_isError(wanted)) fail("unpack: the bundle is damaged");
      write_all(out_bytes, out.pos);
      if (out.pos < out.size) break;
    }
  }
  if (wanted != 0) fail("unpack: the bundle is truncated");
}

__attribute__((used)) void begin(const long* stack) {
  prepare();
  char** const arguments = (char**)(stack + 1);
  long offset = 0;
  if (stack[0] != 2) fail("unpack: usage: unpack OFFSET < BUNDLE");
  for (const char* digit = arguments[1]; *digit >= '0' && *digit <= '9'; ++digit)
    offset = 10 * offset + (*digit - '0');
  if (call(SYS_lseek, 0, offset, 0, 0, 0, 0) != offset) fail("unpack: its input is not a file");
  unpack();
  leave(0);
}
