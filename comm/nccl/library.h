// SPDX-License-Identifier: Apache-2.0
// libnccl (or librccl) of this process, opened when it is first needed. Prefers a library that a
// framework has already loaded, so that the process has only one NCCL. Tries, in this order:
//   IVY_NCCL_LIB              a path; if it is set, nothing else is tried
//   a mapped library          libnccl.so.2 or librccl.so.1 by name, then any libnccl by its file
//                             (such as torch's copy)
//   pip's package             nvidia/nccl/lib/libnccl.so.2 in the directories of Python packages
//   the system                libnccl.so.2, then librccl.so.1
//
// Thread: any. Lifetime: the process; a library is never closed.
#pragma once

#include <string>

#include "comm/nccl/abi.h"
#include "proto/contract/status.h"

namespace ivy::comm::nccl {

inline constexpr int kOldest = 21400;     // The first version that has ncclCommInitRankConfig.
inline constexpr int kMultiRank = 23000;  // The first version with NCCL_MULTI_RANK_GPU_ENABLE.
inline constexpr int kNamedFrom = 22700;  // The first version whose Config has a name.

class Library {
 public:
  // Returns the process's library. Returns FailedPrecondition with the path and advice if there is
  // none, or if it is not NCCL, is too old or lacks a function. A success is final; after a
  // failure, the next call searches again.
  static Result<const Library*> load();

  const Functions& functions() const { return functions_; }
  int version() const { return version_; }           // In NCCL's form: 22809 is 2.28.9.
  const std::string& path() const { return path_; }  // The library's real path.
  // Returns NCCL's text for the error, such as "unhandled system error".
  std::string name_of_error(Status status) const;

 private:
  Library() = default;
  static Result<const Library*> open();
  Result<void> fill(void* library);
  Result<void> check() const;

  Functions functions_;
  int version_ = 0;
  std::string path_;
};

// Sets the directories in which Python searches for packages, separated by ':'. Call it before the
// first load().
void set_package_folders(const std::string& folders);

// Formats a version: 22809 becomes "2.28.9". Pure.
std::string version_text(int version);

}  // namespace ivy::comm::nccl
