// The loop of copies: one read, one or two writes.
// In an unnamed namespace for the reason told in comm/reduce/vectors.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/reduce/vectors.h"

namespace ivy::comm {
namespace {

// One read, one or two writes. `second` may be null.
template <class Isa>
IVY_INLINE void copy_blocks(std::byte* to, bool streaming, std::byte* second, const std::byte* from,
                            std::size_t bytes) {
  using Word = Vector<std::uint64_t, Isa::kBytes>;
  constexpr std::size_t kBlock = kBlockVectors * sizeof(Word);
  const auto part = [&](std::size_t length) {
    __builtin_memcpy(to, from, length);
    if (second != nullptr) __builtin_memcpy(second, from, length);
    to += length;
    if (second != nullptr) second += length;
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
      std::byte* const place = to + static_cast<std::size_t>(i) * sizeof(Word);
      if (streaming) {
        Isa::store_streaming(place, words[i]);
      } else {
        store(place, words[i]);
      }
    }
    to += kBlock;
    from += kBlock;
    if (second == nullptr) continue;
    for (int i = 0; i < kBlockVectors; ++i) {
      store(second + static_cast<std::size_t>(i) * sizeof(Word), words[i]);
    }
    second += kBlock;
  }
  part(bytes);
  if (streaming) Isa::fence();
}

template <class Isa>
void copy_streaming_with(void* to, const void* from, std::size_t bytes) {
  copy_blocks<Isa>(static_cast<std::byte*>(to), true, nullptr, static_cast<const std::byte*>(from),
                   bytes);
}

template <class Isa>
void copy_twice_by(void* to, bool streaming, void* second, const void* from, std::size_t bytes) {
  copy_blocks<Isa>(static_cast<std::byte*>(to), streaming, static_cast<std::byte*>(second),
                   static_cast<const std::byte*>(from), bytes);
}

}  // namespace
}  // namespace ivy::comm
