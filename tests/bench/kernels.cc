// SPDX-License-Identifier: Apache-2.0
// How fast the reduction and copy kernels are, beside memcpy in the same run.
//
//   ivy_bench_kernels [KERNELS] [--mib N] [--rounds N]     KERNELS: scalar, neon, avx2, avx512
//
// One thread on one processor. Each row takes the best of many rounds, in each of which the kernel
// and memcpy run in turn. A rate counts every byte that the program reads and writes (memcpy: two
// for each byte copied), so that a kernel with two inputs and one output is measured by three bytes
// and a ratio of 1 means: as fast as this memory allows.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "comm/reduce/kernel_table.h"
#include "comm/reduce/reduce.h"

namespace ivy::comm {
namespace {

struct Options {
  const KernelTable* table = nullptr;
  std::size_t memory_mib = 64;
  int rounds = 30;
};

constexpr std::size_t kKib = 1024;
constexpr std::size_t kMib = 1024 * kKib;
constexpr std::size_t kMaxInputs = 4;

// Memory that has been written to, aligned as big allocations are.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<char*>(std::aligned_alloc(4096, bytes))) {
    // 1.0 in every format that is measured, or nearly: nothing is subnormal.
    std::memset(data_, 0x3c, bytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(data_); }
  char* data() const { return data_; }

 private:
  std::size_t bytes_;
  char* data_;
};

double seconds_of(const std::function<void()>& body, int times) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
}

void print_head(const char* kernels) {
  std::printf("## Kernels: %s\n\n| what | bytes of one buffer | GB/s | memcpy, GB/s | ÷ memcpy |\n",
              kernels);
  std::printf("|---|---|---|---|---|\n");
}

std::string size_text(std::size_t bytes) {
  return bytes >= kMib ? std::to_string(bytes / kMib) + " MiB"
                       : std::to_string(bytes / kKib) + " KiB";
}

// `traffic`: bytes that one call of `body` reads and writes.
void print_row(const Options& options, const std::string& what, std::size_t bytes,
               std::size_t traffic, const std::function<void()>& body,
               const std::function<void()>& copy_body) {
  // Short calls are timed in runs of about 100 us.
  const int times = static_cast<int>(std::max<std::size_t>(1, 2 * kMib / traffic));
  double best = std::numeric_limits<double>::max();
  double best_copy = best;
  const int rounds = traffic > 8 * kMib ? options.rounds : 20 * options.rounds;
  for (int round = 0; round < rounds; ++round) {
    best = std::min(best, seconds_of(body, times));
    best_copy = std::min(best_copy, seconds_of(copy_body, times));
  }
  const double rate = static_cast<double>(traffic) / best / 1e9;
  const double copy_rate = 2.0 * static_cast<double>(bytes) / best_copy / 1e9;
  std::printf("| %s | %s | %.1f | %.1f | %.2f |\n", what.c_str(), size_text(bytes).c_str(), rate,
              copy_rate, rate / copy_rate);
  std::fflush(stdout);
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        bytes_(options.memory_mib * kMib),
        memory_{Memory(bytes_), Memory(bytes_), Memory(bytes_), Memory(bytes_), Memory(bytes_)} {}

  void reduction(Dtype dtype, ReduceOp op, std::size_t inputs, std::size_t bytes, Stores stores) {
    const Reduction reduction = {
        .dtype = dtype, .op = op, .divisor = static_cast<std::uint32_t>(inputs), .stores = stores};
    const void* const pointers[kMaxInputs] = {memory_[0].data(), memory_[1].data(),
                                              memory_[2].data(), memory_[3].data()};
    const std::string what = std::string(dtype_name(dtype)) + " " +
                             std::string(reduce_op_name(op)) + " of " + std::to_string(inputs) +
                             (stores == Stores::kStreaming ? ", streaming" : "");
    print_row(
        options_, what, bytes, (inputs + 1) * bytes,
        [&] {
          reduce_with(*options_.table, reduction,
                      {pointers, inputs, memory_[4].data(), nullptr, bytes / element_bytes(dtype)});
        },
        [&] { std::memcpy(memory_[4].data(), memory_[0].data(), bytes); });
  }

  void copies(std::size_t bytes) {
    const auto plain = [&] { std::memcpy(memory_[4].data(), memory_[0].data(), bytes); };
    for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
      const std::string how = stores == Stores::kStreaming ? ", streaming" : "";
      print_row(
          options_, "copy" + how, bytes, 2 * bytes,
          [&] {
            copy_with(*options_.table, {memory_[4].data(), memory_[0].data(), bytes}, stores);
          },
          plain);
    }
  }

  void all() {
    print_head(options_.table->name);
    for (const std::size_t bytes : {256 * kKib, bytes_}) {
      for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
        if (bytes < kMib && stores == Stores::kStreaming) continue;
        for (const std::size_t inputs : {2, 4}) {
          for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16, Dtype::kI32}) {
            reduction(dtype, ReduceOp::kSum, inputs, bytes, stores);
          }
        }
      }
    }
    for (const auto& [dtype, op] : {std::pair{Dtype::kF32, ReduceOp::kAvg},
                                    {Dtype::kF32, ReduceOp::kMax},
                                    {Dtype::kF32, ReduceOp::kProduct},
                                    {Dtype::kF64, ReduceOp::kSum},
                                    {Dtype::kC64, ReduceOp::kProduct},
                                    {Dtype::kI8, ReduceOp::kSum},
                                    {Dtype::kI64, ReduceOp::kMin},
                                    {Dtype::kBool, ReduceOp::kBor},
                                    {Dtype::kF8E4m3, ReduceOp::kSum},
                                    {Dtype::kF8E5m2, ReduceOp::kSum},
                                    {Dtype::kI32, ReduceOp::kAvg}}) {
      reduction(dtype, op, 2, 256 * kKib, Stores::kCached);
    }
    for (const std::size_t bytes : {4 * kKib, 64 * kKib, kMib, bytes_}) copies(bytes);
  }

 private:
  Options options_;
  std::size_t bytes_;
  Memory memory_[5];
};

void stay_on_one_processor() {
  const int here = ::sched_getcpu();
  if (here < 0) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(static_cast<unsigned>(here), &only);
  ::sched_setaffinity(0, sizeof only, &only);
}

}  // namespace
}  // namespace ivy::comm

int main(int argc, char** argv) {
  using namespace ivy::comm;
  Options options;
  const InstructionSet sets[] = {InstructionSet::kScalar, InstructionSet::kNeon,
                                 InstructionSet::kAvx2, InstructionSet::kAvx512};
  const char* wanted = kernel_name();
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--mib" && i + 1 < argc) {
      options.memory_mib = std::strtoul(argv[++i], nullptr, 10);
    } else if (word == "--rounds" && i + 1 < argc) {
      options.rounds = std::atoi(argv[++i]);
    } else {
      wanted = argv[i];
    }
  }
  for (const InstructionSet set : sets) {
    const KernelTable* const table = kernel_table(set);
    if (table != nullptr && std::string_view(table->name) == wanted) options.table = table;
  }
  if (options.table == nullptr || options.memory_mib == 0 || options.rounds < 1) {
    std::fprintf(stderr,
                 "usage: %s [KERNELS] [--mib N] [--rounds N]: this machine has no kernels \"%s\"\n",
                 argv[0], wanted);
    return 2;
  }
  stay_on_one_processor();
  Bench(options).all();
}
