// SPDX-License-Identifier: Apache-2.0
// The values that NCCL gets as contexts and handles. They are numbers, not addresses, because NCCL
// may pass a handle to the plug-in after its operation was forgotten, or in another process (a
// proxy that works for a neighbour's GPU), where it must refer to nothing. Pure. Thread: any.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace ivy::nccl_profiler {

enum class HandleKind : std::uint8_t {
  kNone = 0,
  kCommunicator = 1,
  kOperation = 2,
  kKernel = 3,  // One channel of an operation on the device.
  kProxy = 4,
  kStep = 5,
};

// 3 bits kind | 6 bits communicator | 1 bit message | 14 bits process | 40 bits value
struct Handle {
  static constexpr std::uint64_t kValueMask = (std::uint64_t{1} << 40) - 1;
  static constexpr std::uint64_t kPeerMask = (std::uint64_t{1} << 20) - 1;
  static constexpr std::size_t kChannelPeerSlots = 128;

  HandleKind kind = HandleKind::kNone;
  std::uint8_t communicator = 0;
  bool is_message = false;
  std::uint16_t process = 0;
  // The sequence, for an operation and its kernels. For a proxy and its steps, see below.
  std::uint64_t value = 0;

  static std::uint16_t process_of(pid_t pid) {
    const auto number = static_cast<std::uint32_t>(pid);
    return static_cast<std::uint16_t>((number ^ number >> 14) & 0x3fff);
  }
  static Handle of_bits(std::uint64_t bits) {
    Handle handle;
    handle.kind = static_cast<HandleKind>(bits >> 61);
    handle.communicator = static_cast<std::uint8_t>(bits >> 55 & 0x3f);
    handle.is_message = (bits >> 54 & 1) != 0;
    handle.process = static_cast<std::uint16_t>(bits >> 40 & 0x3fff);
    handle.value = bits & kValueMask;
    return handle;
  }
  static Handle of(const void* pointer) {
    return of_bits(reinterpret_cast<std::uintptr_t>(pointer));
  }
  std::uint64_t bits() const {
    return static_cast<std::uint64_t>(kind) << 61 | static_cast<std::uint64_t>(communicator) << 55 |
           static_cast<std::uint64_t>(is_message) << 54 |
           static_cast<std::uint64_t>(process) << 40 | (value & kValueMask);
  }
  void* pointer() const {
    return kind == HandleKind::kNone ? nullptr : reinterpret_cast<void*>(bits());
  }

  // The value of a proxy and of its steps has 20 bits peer | 1 bit is_send | 7 bits channel | 4
  // bits step.
  void set_proxy(std::uint32_t peer, bool is_send, std::uint8_t channel) {
    value =
        (peer & kPeerMask) | std::uint64_t{is_send} << 20 | (channel & std::uint64_t{0x7f}) << 21;
  }
  void set_step(int step) { value |= (static_cast<std::uint64_t>(step) & 0xf) << 28; }
  std::uint32_t peer() const { return static_cast<std::uint32_t>(value & kPeerMask); }
  bool is_send() const { return (value >> 20 & 1) != 0; }
  // Index, below kChannelPeerSlots, of a step's channel and peer. Other pairs may share it.
  std::uint32_t channel_peer_slot() const {
    return static_cast<std::uint32_t>((value >> 21 ^ value * 7) & (kChannelPeerSlots - 1));
  }
  // Encodes a wait for the peer as it is stored in the page: peer and direction, never 0.
  std::uint32_t wait_word() const { return (peer() + 1) << 1 | (is_send() ? 1u : 0u); }
};

}  // namespace ivy::nccl_profiler
