// SPDX-License-Identifier: Apache-2.0
// What the readers of allocations need from outside: files and programs of a scheduler. Thread: the
// main one, before there is a loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Implemented by main, and by tests.
class AllocationInputs {
 public:
  // Reads a file that a variable names.
  virtual Result<std::string> file(const std::string& path) = 0;
  // Runs a program of the scheduler, and returns its standard output.
  virtual Result<std::string> program(const std::vector<std::string>& arguments) = 0;
  virtual std::uint32_t user_id() = 0;

 protected:
  ~AllocationInputs() = default;
};

}  // namespace ivy
