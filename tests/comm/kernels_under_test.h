// SPDX-License-Identifier: Apache-2.0
// The instruction sets that this machine supports, for tests that run each of them.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/reduce/kernel_table.h"
#include "proto/contract/status.h"

namespace ivy::comm {

inline std::vector<const KernelTable*> kernel_tables() {
  std::vector<const KernelTable*> tables;
  for (const InstructionSet set : {InstructionSet::kScalar, InstructionSet::kNeon,
                                   InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (const KernelTable* const table = kernel_table(set)) tables.push_back(table);
  }
  return tables;
}

inline std::vector<Dtype> all_dtypes() {
  std::vector<Dtype> dtypes;
  for (std::uint8_t i = 0; i < kDtypeCount; ++i) dtypes.push_back(static_cast<Dtype>(i));
  return dtypes;
}

inline std::vector<ReduceOp> all_ops() {
  std::vector<ReduceOp> ops;
  for (std::uint8_t i = 0; i < kReduceOpCount; ++i) ops.push_back(static_cast<ReduceOp>(i));
  return ops;
}

// A buffer at a chosen offset from the start of a cache line, between canaries.
class GuardedBuffer {
 public:
  GuardedBuffer(std::size_t bytes, std::size_t offset)
      : memory_(kLine + kGuard + offset + bytes + kGuard, kCanary), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = (kLine - address % kLine) % kLine + kGuard + offset;
  }
  std::uint8_t* data() { return memory_.data() + begin_; }
  bool is_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kGuard = 128;
  static constexpr std::uint8_t kCanary = 0xa5;
  std::vector<std::uint8_t> memory_;
  std::size_t bytes_;
  std::size_t begin_ = 0;
};

// A buffer that ends at unreadable memory, or starts after it (at_start).
class FencedBuffer {
 public:
  FencedBuffer(std::size_t bytes, bool at_start) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t inside = (bytes + page - 1) / page * page;
    length_ = inside + 2 * page;
    void* const memory = ::mmap(nullptr, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    IVY_ASSERT(memory != MAP_FAILED);
    memory_ = static_cast<std::uint8_t*>(memory);
    IVY_ASSERT(::mprotect(memory_ + page, inside, PROT_READ | PROT_WRITE) == 0);
    data_ = memory_ + page + (at_start ? 0 : inside - bytes);
  }
  FencedBuffer(const FencedBuffer&) = delete;
  FencedBuffer& operator=(const FencedBuffer&) = delete;
  ~FencedBuffer() { ::munmap(memory_, length_); }
  std::uint8_t* data() { return data_; }

 private:
  std::uint8_t* memory_ = nullptr;
  std::uint8_t* data_ = nullptr;
  std::size_t length_ = 0;
};

}  // namespace ivy::comm
