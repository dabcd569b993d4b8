// SPDX-License-Identifier: Apache-2.0
// A driver and an NCCL that do nothing, in one library: what a call on device memory takes with
// them is libivycomm's own part. NCCL's real calls leave little of what others had in the caches
// next to the processor, and so do these collectives.
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kOk = 0;
constexpr unsigned kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE
constexpr std::size_t kLine = 64;
constexpr std::size_t kCachedData = 64 << 10;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 256;

// As a real call does: data of as many bytes as the cache next to a processor holds and more pages
// than its translations, and instructions of twice as many, in 128 pages with 32 jumps each.
[[gnu::noinline]] int evict() {
  alignas(kPage) static const std::array<char, kPages * kPage> data{};
  const auto touch = [](std::size_t at) {
    static_cast<void>(static_cast<const volatile char*>(data.data())[at]);
  };
  for (std::size_t at = 0; at < kCachedData; at += kLine) touch(at);
  for (std::size_t page = 0; page < kPages; ++page) touch(page * kPage + page % kLine * kLine);
#if defined(__x86_64__)
#define IVY_JUMP "jmp"
#else
#define IVY_JUMP "b"
#endif
  // Each page has its instructions in another quarter than the one before.
  asm volatile(
      ".set quarter, 0\n"
      ".rept 128\n" IVY_JUMP
      " 2f\n .balign 4096\n .skip quarter * 1024 + 32\n 2:\n"
      ".rept 32\n" IVY_JUMP
      " 1f\n .balign 32\n 1:\n .endr\n"
      ".set quarter, (quarter + 1) & 3\n .endr");
#undef IVY_JUMP
  // Behind the kernel the processor does not know where the calls around it return.
  static_cast<void>(syscall(SYS_gettid));
  return kOk;
}

int give_memory(void** out, std::size_t bytes) {
  *out = std::malloc(bytes);
  return *out == nullptr ? 2 : kOk;
}

int give_number(int* out, int number) {
  *out = number;
  return kOk;
}

void* the_context() {
  static char context;
  return &context;
}

}  // namespace

#define IVY_IDLE(name) \
  __attribute__((visibility("default"))) int name() { return kOk; }
#define IVY_VISIBLE __attribute__((visibility("default")))

extern "C" {
IVY_IDLE(cuInit)
IVY_IDLE(cuCtxSetCurrent)
IVY_IDLE(cuEventDestroy_v2)
IVY_IDLE(cuEventRecord)
IVY_IDLE(cuEventQuery)
IVY_IDLE(cuStreamDestroy_v2)
IVY_IDLE(cuStreamWaitEvent)
IVY_IDLE(cuThreadExchangeStreamCaptureMode)
IVY_IDLE(cuMemcpyDtoHAsync_v2)
IVY_IDLE(cuMemcpyHtoDAsync_v2)
IVY_IDLE(cuMemcpyDtoDAsync_v2)
IVY_IDLE(cuMemFree_v2)
IVY_VISIBLE int cuDriverGetVersion(int* out) { return give_number(out, 13'000); }
IVY_VISIBLE int cuDeviceGetCount(int* out) { return give_number(out, 1); }
IVY_VISIBLE int cuDeviceGet(int* out, int device) { return give_number(out, device); }
IVY_VISIBLE int cuCtxGetDevice(int* out) { return give_number(out, 0); }
IVY_VISIBLE int cuStreamIsCapturing(void*, int* out) { return give_number(out, 0); }
IVY_VISIBLE int cuDeviceGetUuid(unsigned char* out, int) {
  std::memset(out, 1, 16);
  return kOk;
}
IVY_VISIBLE int cuDeviceGetPCIBusId(char* out, int, int) {
  std::strcpy(out, "0");
  return kOk;
}
IVY_VISIBLE int cuCtxGetCurrent(void** out) {
  *out = the_context();
  return kOk;
}
IVY_VISIBLE int cuDevicePrimaryCtxRetain(void** out, int) {
  *out = the_context();
  return kOk;
}
IVY_VISIBLE int cuStreamGetCtx(void*, void** out) {
  *out = the_context();
  return kOk;
}
IVY_VISIBLE int cuPointerGetAttributes(unsigned, int*, void** out, std::uintptr_t) {
  *static_cast<unsigned*>(out[0]) = kDeviceMemory;
  return kOk;
}
IVY_VISIBLE int cuEventCreate(void** out, unsigned) { return give_memory(out, 1); }
IVY_VISIBLE int cuStreamCreate(void** out, unsigned) { return give_memory(out, 1); }
IVY_VISIBLE int cuMemAlloc_v2(void** out, std::size_t bytes) { return give_memory(out, bytes); }
IVY_VISIBLE int cuGetErrorString(int, const char** out) {
  *out = "an error";
  return kOk;
}

struct UniqueId {
  char bytes[128];
};
IVY_IDLE(ncclCommFinalize)
IVY_IDLE(ncclCommDestroy)
IVY_IDLE(ncclCommAbort)
IVY_IDLE(ncclGroupStart)
IVY_IDLE(ncclGroupEnd)
IVY_IDLE(ncclReduce)
IVY_IDLE(ncclBroadcast)
IVY_IDLE(ncclSend)
IVY_IDLE(ncclRecv)
IVY_IDLE(ncclRedOpCreatePreMulSum)
IVY_IDLE(ncclRedOpDestroy)
IVY_VISIBLE int ncclAllReduce() { return evict(); }
IVY_VISIBLE int ncclAllGather() { return evict(); }
IVY_VISIBLE int ncclReduceScatter() { return evict(); }
IVY_VISIBLE int ncclGetVersion(int* out) { return give_number(out, 22'809); }
IVY_VISIBLE int ncclGetUniqueId(UniqueId* out) {
  std::memset(out, 1, sizeof *out);
  return kOk;
}
IVY_VISIBLE int ncclCommInitRankConfig(void** out, int, UniqueId, int, void*) {
  *out = the_context();
  return kOk;
}
IVY_VISIBLE int ncclCommGetAsyncError(void*, int* out) { return give_number(out, kOk); }
IVY_VISIBLE const char* ncclGetErrorString(int) { return "an error"; }
IVY_VISIBLE const char* ncclGetLastError(void*) { return ""; }
}
