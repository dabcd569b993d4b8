// SPDX-License-Identifier: Apache-2.0
// Performs a collective on device memory through host memory: copies the inputs to the host, runs
// the CPU's collective, and copies the results back, in the order of the caller's stream. Slow, but
// correct for every type.
//
// Thread: one that holds the communicator's lock and has selected the operation's device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/collectives/collective.h"
#include "comm/contract/failure.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/operation.h"

namespace ivy::comm {

class Staging {
 public:
  // Keeps a reference to `operation`, which must outlive it.
  Staging(const nccl::DeviceOperation& operation, std::int32_t rank);

  // Returns when this rank's inputs are in host memory.
  MaybeFailure copy_out(nccl::DeviceCommunicator& device, Deadline& deadline);
  // Returns the operation on host memory.
  const Collective& on_host() const { return on_host_; }
  MaybeFailure copy_back(nccl::DeviceCommunicator& device, Deadline& deadline);

 private:
  // A piece of device memory, and its position in the host's buffer.
  struct Piece {
    char* device = nullptr;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  void collect(std::size_t rank);
  static std::vector<char> memory_of(const std::vector<Piece>& pieces);

  const nccl::DeviceOperation& operation_;
  Collective on_host_;
  std::vector<Piece> inputs_;
  std::vector<Piece> outputs_;
  std::vector<char> send_;
  std::vector<char> receive_;
};

}  // namespace ivy::comm
