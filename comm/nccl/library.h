// SPDX-License-Identifier: Apache-2.0
// libnccl (or librccl) of this process, opened when it is first wanted. The library in which a
// framework already computes is taken, so that there is one NCCL in a process. In this order:
//   IVY_NCCL_LIB              a path; nothing else is tried
//   what is mapped already    libnccl.so.2, by its name or by its file (torch's own copy)
//   pip's                     nvidia/nccl/lib/libnccl.so.2 where Python looks for packages
//   the system's              libnccl.so.2, then librccl.so.1
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
  // FailedPrecondition: no library, the wrong one, one that is too old or lacks a function; the
  // text names its path, `fix` what to do. The answer is kept: the same for the whole process.
  static Result<const Library*> load();

  const Functions& functions() const { return functions_; }
  int version() const { return version_; }           // As NCCL counts: 22809 is 2.28.9.
  const std::string& path() const { return path_; }  // As the loader resolved it.
  // NCCL's own words, such as "unhandled system error".
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

// Sets where Python looks for packages, separated by ':'. Call it before the first load().
void set_package_folders(const std::string& folders);

// Writes a version as people do: 22809 is "2.28.9". Pure.
std::string version_text(int version);

}  // namespace ivy::comm::nccl
