// SPDX-License-Identifier: Apache-2.0
// The store that rank 0 starts where no ivyrun serves one: an `ivy-rendezvous` of its own, in the
// background, on a socket that this process has opened.
//
// It inherits nothing but that socket, its token, and an eye on this process: when this object or
// the process goes, however it does, the store takes no new client, serves those that are there,
// and ends with the last of them (rendezvous/server/serve.h).
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "proto/contract/status.h"

namespace ivy::comm {

struct PrivateStoreOptions {
  int listening = -1;  // The caller keeps owning it.
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
};

class PrivateStore {
 public:
  // Waits until it serves, at most kStartTime. NotFound: the program; says where it was looked for.
  static constexpr std::chrono::seconds kStartTime{20};
  static Result<std::unique_ptr<PrivateStore>> start(const PrivateStoreOptions& options);
  ~PrivateStore();
  // Call after all ranks have joined: the store rejects every further client with the reason.
  void refuse_joins() const;
  PrivateStore(const PrivateStore&) = delete;
  PrivateStore& operator=(const PrivateStore&) = delete;

 private:
  PrivateStore(int control, int life);
  const int control_;
  const int life_;   // A pipe's end that the store sees closed when this process goes; mostly none.
  const int owner_;  // A forked child does not end its parent's store.
};

// The program: IVY_RENDEZVOUS, else beside this library (a wheel), in the bin/ of its tree (built
// or installed).
Result<std::string> find_rendezvous();

}  // namespace ivy::comm
