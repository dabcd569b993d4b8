// SPDX-License-Identifier: Apache-2.0
// Converts the output of faulthandler, py-spy and gdb about a process's threads to one form. Pure;
// thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

struct StackThread {
  std::string name;  // "main thread", "thread pin_memory", "thread".
  // Innermost first: "all_reduce (torch/distributed/distributed_c10d.py:4174)". Without addresses
  // and numbers that differ between processes.
  std::vector<std::string> frames;
  bool operator==(const StackThread&) const = default;
};

// tool: "faulthandler", "py-spy" or "gdb". The main thread comes first if it can be identified.
// Returns the readable part of a truncated text.
std::vector<StackThread> parse_stack(std::string_view tool, std::string_view text);

// Returns the library's collective in which the thread is: "torch's all_reduce at train.py:12";
// empty if in none.
std::string collective_of(const StackThread& thread);

}  // namespace ivy
