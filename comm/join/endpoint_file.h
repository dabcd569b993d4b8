// SPDX-License-Identifier: Apache-2.0
// The file in which rank 0's endpoint (endpoint.h) lies for the others: of this user alone, there
// whole or not at all.
//
// Thread: any. Lifetime: the file goes with remove(), which rank 0 calls as soon as all have come,
// and with the object; after a kill it stays, and nobody answers at its addresses.
#pragma once

#include <memory>
#include <string>

#include "comm/join/endpoint.h"
#include "proto/contract/status.h"

namespace ivy::comm {

class EndpointFile {
 public:
  // Written next to `path` and renamed, mode 0600. PermissionDenied, Unavailable: the directory.
  static Result<std::unique_ptr<EndpointFile>> write(const std::string& path,
                                                     const Endpoint& endpoint);
  ~EndpointFile();
  EndpointFile(const EndpointFile&) = delete;
  EndpointFile& operator=(const EndpointFile&) = delete;

  // Removes the file, unless another file has taken its place.
  void remove();

 private:
  EndpointFile(std::string path, std::string text);
  const std::string path_;
  const std::string text_;
  const int owner_;  // A forked child does not remove its parent's file.
  bool is_there_ = true;
};

// NotFound: no such file; PermissionDenied: it belongs to another user, or others can read or write
// it; DataLoss: the file contains no endpoint.
Result<Endpoint> read_endpoint(const std::string& path);

// A path in a directory of this user alone, the same for all of this host's ranks that know the
// key: /tmp/ivycomm-UID/HASH. PermissionDenied: the directory is another user's.
Result<std::string> private_path(const std::string& key);

// Returns "4711 123456": pid and start time of the nearest ancestor process with that name; empty
// if there is none.
std::string process_above(const std::string& name);

// "4711 123456" of this one.
std::string own_process();

}  // namespace ivy::comm
