// SPDX-License-Identifier: Apache-2.0
// The directories of one server below the job's: libpmix's own, and that in which ranks keep their
// session. Made new and removed whole. Thread: one.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

class SessionFiles {
 public:
  // Creates JOBDIR/pmix/GENERATION, 0700; removes files of a previous server there.
  static Result<SessionFiles> make(const std::string& job_directory, std::uint32_t generation);
  SessionFiles(SessionFiles&& other) noexcept;
  SessionFiles& operator=(SessionFiles&&) = delete;
  ~SessionFiles();

  std::string server() const { return path_ + "/server"; }
  std::string session() const { return path_ + "/session"; }

 private:
  explicit SessionFiles(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace ivy
