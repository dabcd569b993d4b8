// SPDX-License-Identifier: Apache-2.0
// The node binary of this build, as links start it on this host. Thread: any.
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
  // A warden that was already started as a copy of this process, for the first link that can use
  // it; else null.
  std::shared_ptr<WardenCopy> copy;
};

}  // namespace ivy
