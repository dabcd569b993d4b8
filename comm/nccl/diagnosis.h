// SPDX-License-Identifier: Apache-2.0
// Describes the failures of one communicator's NCCL: adds NCCL's warnings, the answer of its health
// service (ras.h), and the rank that died in the meantime.
//
// Thread: any. Lifetime: outlived by the options, the source and the library.
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
  Diagnosis(const DeviceCommunicatorOptions& options, FailureSource& source)
      : options_(options), source_(source) {}

  // Call when NCCL is open. Only timeout() and with_ras() may be called before.
  void use(const Library& library) { library_ = &library; }
  // Describes an error status that NCCL returned from the call `what`.
  [[gnu::cold, gnu::noinline]] Failure nccl_error(Status status, const std::string& what) const;
  // Describes a timeout of `what`, with its reason.
  [[gnu::cold, gnu::noinline]] Failure timeout(const std::string& what,
                                               const std::string& why) const;
  // Describes a wait in NCCL that has reached its deadline. `handle` may be null.
  [[gnu::cold, gnu::noinline]] Failure stuck_wait(const std::string& what,
                                                  std::chrono::nanoseconds waited,
                                                  Handle handle) const;
  // Describes an operation that the device has not finished in time, with the owner's reason.
  [[gnu::cold, gnu::noinline]] Failure late(const Enqueued& operation) const;
  // Waits up to 1.3 s for the cause of an error of NCCL, which may be another rank's death or a
  // difference between the ranks' calls. Returns the cause if it is found, or else `failure`.
  [[gnu::cold, gnu::noinline]] Failure explained(const Failure& failure) const;
  // Adds the report of NCCL's health service to a timeout inside NCCL. Returns other failures
  // unchanged.
  [[gnu::cold, gnu::noinline]] Failure with_ras(const Failure& failure) const;

 private:
  bool may_query_ras() const;

  const DeviceCommunicatorOptions& options_;
  FailureSource& source_;
  const Library* library_ = nullptr;
};

// Formats a time with at most three digits and the unit, such as "1.5 s".
std::string time_text(std::chrono::nanoseconds time);

}  // namespace ivy::comm::nccl
