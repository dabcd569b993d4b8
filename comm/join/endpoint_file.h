// SPDX-License-Identifier: Apache-2.0
// The file with rank 0's endpoint (endpoint.h) for the other ranks. Only this user can access it,
// and it appears atomically.
//
// Thread: any. Lifetime: the file is removed by remove(), which rank 0 calls as soon as all ranks
// have joined, and by the destructor. If rank 0 is killed, the file remains, but nothing answers at
// its addresses.
#pragma once

#include <memory>
#include <string>

#include "comm/join/endpoint.h"
#include "proto/contract/status.h"

namespace ivy::comm {

class EndpointFile {
 public:
  // Writes the file next to `path` and renames it; mode 0600. Fails with PermissionDenied or
  // Unavailable because of the directory.
  static Result<std::unique_ptr<EndpointFile>> write(const std::string& path,
                                                     const Endpoint& endpoint);
  ~EndpointFile();
  EndpointFile(const EndpointFile&) = delete;
  EndpointFile& operator=(const EndpointFile&) = delete;

  // Removes the file, unless another file has replaced it.
  void remove();

 private:
  EndpointFile(std::string path, std::string text);
  const std::string path_;
  const std::string text_;
  const int owner_;  // So that a forked child does not remove its parent's file.
  bool exists_ = true;
};

// Fails with NotFound if the file does not exist, PermissionDenied if it belongs to another user or
// others can read or write it, and DataLoss if it contains no endpoint.
Result<Endpoint> read_endpoint(const std::string& path);

// Returns a path in a directory of this user, the same for all ranks of this host that know the
// key: /tmp/ivycomm-UID/HASH. Fails with PermissionDenied if the directory is another user's.
Result<std::string> private_path(const std::string& key);

// Returns the pid and start time of the nearest ancestor process with that name, such as "4711
// 123456", or an empty text if there is none.
std::string process_above(const std::string& name);

// Returns the same of this process.
std::string own_process();

}  // namespace ivy::comm
