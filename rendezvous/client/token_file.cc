// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "proto/os/descriptor.h"

namespace ivy::store {

Result<std::string> read_token(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return errno_error(Code::kNotFound, "token file " + path, errno);
  std::array<char, kTokenBytes + 1> bytes{};
  const ssize_t count = read(fd.get(), bytes.data(), bytes.size());
  if (count != static_cast<ssize_t>(kTokenBytes)) {
    return Error{Code::kInvalidArgument,
                 "token file " + path + " must hold " + std::to_string(kTokenBytes) + " bytes"};
  }
  return std::string(bytes.data(), kTokenBytes);
}

}  // namespace ivy::store
