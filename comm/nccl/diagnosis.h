// SPDX-License-Identifier: Apache-2.0
// The failures of one communicator's part of NCCL, in words: with what NCCL has warned of, what its
// health service knows (ras.h), and who died meanwhile.
//
// Thread: any. Lifetime: the options and the library outlive it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "comm/nccl/communicator_options.h"
#include "comm/nccl/library.h"

namespace ivy::comm::nccl {

class Diagnosis {
 public:
  // `trouble` returns why waiting is pointless; it must not call NCCL.
  Diagnosis(const DeviceCommunicatorOptions& options, std::function<MaybeFailure()> trouble)
      : options_(options), trouble_(std::move(trouble)) {}

  // Before the first of the next.
  void use(const Library& library) { library_ = &library; }
  [[gnu::cold, gnu::noinline]] Failure of_nccl(Status status, const std::string& what) const;
  [[gnu::cold, gnu::noinline]] Failure timeout(const std::string& what,
                                               const std::string& why) const;
  // A wait in NCCL that does not end; the handle may be null.
  [[gnu::cold, gnu::noinline]] Failure endless(const std::string& what,
                                               std::chrono::nanoseconds waited,
                                               Handle handle) const;
  [[gnu::cold, gnu::noinline]] Failure late(const Enqueued& operation) const;
  // Waits for a moment: a failure of NCCL's may be another rank's death, or a call that differs.
  [[gnu::cold, gnu::noinline]] Failure explained(const Failure& failure) const;
  // Adds what NCCL's health service knows to a timeout inside NCCL.
  [[gnu::cold, gnu::noinline]] Failure with_ras(const Failure& failure) const;

 private:
  bool may_ask_ras() const;

  const DeviceCommunicatorOptions& options_;
  const std::function<MaybeFailure()> trouble_;
  const Library* library_ = nullptr;
};

// Gives three digits and the unit: "1.5 s".
std::string time_text(std::chrono::nanoseconds time);

}  // namespace ivy::comm::nccl
