// SPDX-License-Identifier: Apache-2.0
// This build's node binary, as links start it on this host. Thread: any.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace ivy {

class WardenCopy;

struct NodeProgram {
  NodeProgram() = default;
  NodeProgram(std::string its_path) : path(std::move(its_path)) {}

  std::string path;
  // The warden that lives already as a copy of this process, for the link that finds it; else null.
  std::shared_ptr<WardenCopy> copy;
};

}  // namespace ivy
