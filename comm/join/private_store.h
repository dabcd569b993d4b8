// SPDX-License-Identifier: Apache-2.0
// The store that rank 0 starts if no ivyrun serves one: a separate `ivy-rendezvous` in the
// background, on a socket that this process has opened.
//
// It inherits only that socket, its token, a control connection, and a descriptor that shows the
// end of this process. When this object is destroyed or the process exits, in whatever way, the
// store accepts no more clients, serves the connected ones, and exits with the last of them
// (rendezvous/server/serve.h).
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "proto/contract/status.h"

namespace ivy::comm {

struct PrivateStoreOptions {
  int listening = -1;  // Remains owned by the caller.
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
};

class PrivateStore {
 public:
  // Limit of a token: a pipe holds this much without a reader.
  static constexpr std::size_t kTokenBytesMax = 4096;
  static constexpr std::chrono::seconds kStartTime{20};
  // Waits until the store serves, at most for kStartTime. Fails with NotFound if the program was
  // not found; the text lists the locations that were searched.
  static Result<std::unique_ptr<PrivateStore>> start(const PrivateStoreOptions& options);
  ~PrivateStore();
  // Call after all ranks have joined: the store rejects every further client with the reason.
  void reject_joins() const;
  PrivateStore(const PrivateStore&) = delete;
  PrivateStore& operator=(const PrivateStore&) = delete;

 private:
  PrivateStore(int control, int life);
  const int control_;
  const int life_;   // End of a pipe that closes when this process exits; -1 from Linux 5.3 on.
  const int owner_;  // So that a forked child does not end its parent's store.
};

// Returns the program: IVY_RENDEZVOUS, or else the one next to this library (a wheel), or in the
// bin/ of its tree (built or installed).
Result<std::string> find_rendezvous();

}  // namespace ivy::comm
