// SPDX-License-Identifier: Apache-2.0
// Describes the failures of one communicator's NCCL: adds NCCL's warnings, the answer of its health
// service (ras.h), and the rank that died in the meantime.
//
// Thread: any. Lifetime: the options and the library outlive it.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/communicator_options.h"
#include "comm/nccl/library.h"

namespace ivy::comm::nccl {

class Diagnosis {
 public:
  // `source` must not call NCCL.
  Diagnosis(const DeviceCommunicatorOptions& options, TroubleSource& source)
      : options_(options), source_(source) {}

  // Call before the functions below.
  void use(const Library& library) { library_ = &library; }
  [[gnu::cold, gnu::noinline]] Failure of_nccl(Status status, const std::string& what) const;
  [[gnu::cold, gnu::noinline]] Failure timeout(const std::string& what,
                                               const std::string& why) const;
  // For a wait in NCCL that does not end; the handle may be null.
  [[gnu::cold, gnu::noinline]] Failure endless(const std::string& what,
                                               std::chrono::nanoseconds waited,
                                               Handle handle) const;
  [[gnu::cold, gnu::noinline]] Failure late(const Enqueued& operation) const;
  // Waits for a moment for the cause: an error of NCCL may result from another rank's death, or
  // from calls that differ.
  [[gnu::cold, gnu::noinline]] Failure explained(const Failure& failure) const;
  // Adds what NCCL's health service knows to a timeout inside NCCL.
  [[gnu::cold, gnu::noinline]] Failure with_ras(const Failure& failure) const;

 private:
  bool may_ask_ras() const;

  const DeviceCommunicatorOptions& options_;
  TroubleSource& source_;
  const Library* library_ = nullptr;
};

// Gives three digits and the unit: "1.5 s".
std::string time_text(std::chrono::nanoseconds time);

}  // namespace ivy::comm::nccl
