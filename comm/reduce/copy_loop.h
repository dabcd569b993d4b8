// SPDX-License-Identifier: Apache-2.0
// The loop of copies that bypass the caches. In an unnamed namespace for the reason given in
// comm/reduce/vectors.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/reduce/vectors.h"

namespace ivy::comm {
namespace {

template <class Isa>
void copy_streaming_with(void* to_memory, const void* from_memory, std::size_t bytes) {
  using Word = Vector<std::uint64_t, Isa::kBytes>;
  constexpr std::size_t kBlock = kBlockVectors * sizeof(Word);
  auto* to = static_cast<std::byte*>(to_memory);
  const auto* from = static_cast<const std::byte*>(from_memory);
  const auto part = [&](std::size_t length) {
    __builtin_memcpy(to, from, length);
    to += length;
    from += length;
    bytes -= length;
  };
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  if (bytes < (before == 0 ? kBlock : kAlignFromBytes)) return part(bytes);
  part(before);
  for (; bytes >= kBlock; bytes -= kBlock) {
    Word words[kBlockVectors];
    for (int i = 0; i < kBlockVectors; ++i) {
      words[i] = load<Word>(from + static_cast<std::size_t>(i) * sizeof(Word));
    }
    for (int i = 0; i < kBlockVectors; ++i) {
      Isa::store_streaming(to + static_cast<std::size_t>(i) * sizeof(Word), words[i]);
    }
    to += kBlock;
    from += kBlock;
  }
  part(bytes);
  Isa::fence();
}

}  // namespace
}  // namespace ivy::comm
